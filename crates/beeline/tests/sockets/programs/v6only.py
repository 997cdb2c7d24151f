# Dials with IPV6_V6ONLY set to ARGS["v6only"]. The result of a dial is the reported peer, or the name of an errno.
def dial(call, address):
    made = open_socket("tcp" if call == "tcp" else "udp", address)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, ARGS["v6only"])
    if call == "sendto":
        return attempt(lambda: exchange(made, address)["from"])
    result = attempt(made.connect, tuple(address))
    return result or text(made.getpeername())


print(json.dumps([[dial(call, address) for call in ("tcp", "udp", "sendto")] for address in ARGS["to"]]))
