//go:build programs

// Package programs names what the kit builds, so that `go mod tidy` keeps go.mod and go.sum complete for it.
package programs

import (
	_ "github.com/kubeedge/kubeedge/cloud/cmd/cloudcore"
	_ "github.com/kubeedge/kubeedge/edge/cmd/edgecore"
)
