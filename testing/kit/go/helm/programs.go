//go:build programs

// Package programs names what the kit builds, so that `go mod tidy` keeps go.mod and go.sum complete for it.
package programs

import _ "helm.sh/helm/v4/cmd/helm"
