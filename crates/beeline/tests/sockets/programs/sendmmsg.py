# Sends one datagram to each of ARGS["to"] by as few sendmmsg() calls as possible, and receives by recvmmsg().
class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Header(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p), ("namelen", ctypes.c_uint32), ("iov", ctypes.POINTER(Iovec)),
        ("iovlen", ctypes.c_size_t), ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t),
        ("flags", ctypes.c_int), ("padding", ctypes.c_int), ("sent", ctypes.c_uint),
    ]


def messages(buffers, names):
    vector = (Header * len(buffers))()
    for entry, buffer, name in zip(vector, buffers, names):
        iov = Iovec(ctypes.addressof(buffer), len(buffer))
        entry.name, entry.namelen = ctypes.addressof(name), len(name)
        entry.iov, entry.iovlen = ctypes.pointer(iov), 1
    return vector


to = ARGS["to"]
used = open_socket("udp", to[0])
used.setblocking(True)
used.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 5, 0))
requests = [ctypes.create_string_buffer(b"who\n", 4) for _ in to]
names = [ctypes.create_string_buffer(sockaddr(address), len(sockaddr(address))) for address in to]
vector = messages(requests, names)
assert ctypes.sizeof(Header) == 64
returned, at = [], 0
while at < len(to):
    sent = LIBC.sendmmsg(used.fileno(), ctypes.byref(vector, at * 64), len(to) - at, 0)
    if sent < 0:
        returned.append(errno.errorcode[ctypes.get_errno()])
        break
    returned.append(sent)
    at += sent
answers = []
while len(answers) < at:
    buffers = [ctypes.create_string_buffer(512) for _ in range(at)]
    sources = [ctypes.create_string_buffer(28) for _ in range(at)]
    vector = messages(buffers, sources)
    MSG_WAITFORONE = 0x10000
    received = check(LIBC.recvmmsg(used.fileno(), vector, at, MSG_WAITFORONE, None))
    for buffer, source in list(zip(buffers, sources))[:received]:
        answers.append([from_sockaddr(source.raw), buffer.value.decode().split()[1]])
print(json.dumps({"returned": returned, "answers": answers}))
