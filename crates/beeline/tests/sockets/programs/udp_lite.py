# UDP-Lite. The role "server" answers at ARGS["at"], the role "client" asks there, connected and unconnected.
UDP_LITE = 136


def udp_lite():
    made = socket.socket(family_of(ARGS["at"]), socket.SOCK_DGRAM, UDP_LITE)
    made.settimeout(5)
    return made


def serve():
    server = udp_lite()
    server.bind(tuple(ARGS["at"]))
    print("ready", flush=True)
    while True:
        try:
            server.sendto(b"outside - -", server.recvfrom(512)[1])
        except TimeoutError:
            pass


def ask():
    connected, unconnected = udp_lite(), udp_lite()
    connected.connect(tuple(ARGS["at"]))
    return {
        "connected": exchange(connected), "peer": text(connected.getpeername()),
        "unconnected": exchange(unconnected, ARGS["at"]),
    }


try:
    print(json.dumps(serve() if ARGS["role"] == "server" else ask()))
except OSError as error:
    print(json.dumps({"errno": name_of(error)}))
