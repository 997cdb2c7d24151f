#!/bin/bash
# Dials TCP port 80 of each address in a loop until /run/dials/stop exists. It uses only bash built-ins, because starting a
# program in an emulated guest takes longer than a dial.
#
#   dials.sh NAME ADDRESS...      NAME is the server that must answer
#
# /run/dials/total contains the number of dials and of failures, /run/dials/failed one line per failure.
set -u
name=$1
shift
mkdir -p /run/dials
count=0
failed=0

dial() {
    local answer=
    { printf 'GET /hostname HTTP/1.0\r\n\r\n' >&3 && read -r -t 20 -d '' answer <&3; } 3<>"/dev/tcp/$1/80"
    [[ $answer == *"$name" ]]
}

until [[ -e /run/dials/stop ]]; do
    for address; do
        count=$((count + 1))
        dial "$address" 2>/run/dials/error || {
            failed=$((failed + 1))
            echo "$EPOCHREALTIME $address $(</run/dials/error)" >>/run/dials/failed
        }
    done
    echo "$count $failed" >/run/dials/new
    mv /run/dials/new /run/dials/total
done
touch /run/dials/ended
