# UDP sockets with IP_RECVERR send to a port that is closed. Prints what the error queue reports.
IP_RECVERR, IPV6_RECVERR = 11, 25


def errors(made):
    # An AF_INET6 socket needs both: the first for IPv4.
    made.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    if made.family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
    return made


def read_queue(made):
    poll = select.poll()
    poll.register(made, 0)
    assert poll.poll(5000), "no error arrived"
    _, control, flags, name = made.recvmsg(512, 512, socket.MSG_ERRQUEUE)
    data = control[0][2]
    error = struct.unpack("=I", data[:4])[0]
    # struct sock_extended_err has 16 bytes; the offender's address follows.
    return {
        "errno": errno.errorcode[error], "name": text(name), "offender": from_sockaddr(data[16:].ljust(28, b"\0")),
        "is_queue": bool(flags & socket.MSG_ERRQUEUE),
    }


to = tuple(ARGS["to"])
connected, unconnected, plain = (open_socket("udp", to) for _ in range(3))
errors(connected).connect(to)
connected.send(b"who\n")
errors(unconnected).sendto(b"who\n", to)
plain.connect(to)
plain.send(b"who\n")
print(json.dumps({
    "connected": read_queue(connected), "peer": text(connected.getpeername()), "unconnected": read_queue(unconnected),
    "plain": attempt(plain.recv, 16),
}))
