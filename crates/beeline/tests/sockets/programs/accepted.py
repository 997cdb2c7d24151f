# Two roles. "peer" is a backend: it accepts the dials of the server, then dials the server from the same address and
# port. "server" dials the services of the peer, also by the socket that listens later, then accepts.
REUSE = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)


def peer(case):
    listener = open_socket(case["kind"], case["own"], *REUSE)
    listener.bind(tuple(case["own"]))
    listener.listen()
    print("ready", flush=True)
    for _ in range(2):
        listener.accept()[0].close()
    end = time.monotonic() + 20
    while True:
        client = open_socket(case["kind"], case["own"], *REUSE)
        client.bind(tuple(case["own"]))
        try:
            client.connect(tuple(case["server"]))
            break
        except ConnectionRefusedError:
            assert time.monotonic() < end, "the server does not listen"
            time.sleep(0.01)
    client.sendall(b"x")
    client.recv(1)
    return {"local": text(client.getsockname()), "peer": text(client.getpeername())}


def server(case):
    dialled, listener = (open_socket(case["kind"], case["service"], *REUSE) for _ in range(2))
    dialled.connect(tuple(case["service"]))
    listener.connect(tuple(case["service"]))
    before = text(listener.getpeername())
    disconnect(listener)
    listener.bind(tuple(case["listen"]))
    listener.listen()
    accepted, source = listener.accept()
    accepted.settimeout(5)
    accepted.recv(1)
    accepted.sendall(b"x")
    return {
        "dialled": text(dialled.getpeername()), "before": before, "accept": text(source),
        "peer": text(accepted.getpeername()), "local": text(accepted.getsockname()),
    }


print(json.dumps({"peer": peer, "server": server}[ARGS["role"]](ARGS)))
