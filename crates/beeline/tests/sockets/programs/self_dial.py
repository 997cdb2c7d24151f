# A pod that is a backend of a service dials that service and reaches itself. ARGS["own"] is the backend's address.
results = []
for kind in ("tcp", "mptcp"):
    listener = open_socket(kind, ARGS["own"], socket.SO_REUSEADDR)
    listener.bind(tuple(ARGS["own"]))
    listener.listen()
    client = open_socket(kind, ARGS["service"])
    client.connect(tuple(ARGS["service"]))
    accepted, source = listener.accept()
    results.append({
        "kind": kind, "service": text(client.getpeername()), "client": text(client.getsockname()),
        "source": text(source), "peer": text(accepted.getpeername()), "local": text(accepted.getsockname()),
    })
    listener.close()
server, client = open_socket("udp", ARGS["own"]), open_socket("udp", ARGS["service"])
server.bind(tuple(ARGS["own"]))
# The server itself used the service before, so it has a record with its own address as backend.
server.sendto(b"own", tuple(ARGS["service"]))
server.recvfrom(16)
client.bind((ARGS["client"], 0))
client.sendto(b"x", tuple(ARGS["service"]))
_, source = server.recvfrom(16)
server.sendto(b"y", source)
_, reported = client.recvfrom(16)
results.append({
    "kind": "udp", "service": text(reported), "client": text(client.getsockname()), "source": text(source),
    "peer": text(source), "local": text(server.getsockname()),
})
print(json.dumps(results))
