# The first part of every program in this directory: arguments, addresses, and socket calls that Python lacks.
import ctypes, errno, json, os, select, socket, struct, sys, time

ARGS = json.loads(sys.argv[1])
LIBC = ctypes.CDLL(None, use_errno=True)
TYPES = {"tcp": (socket.SOCK_STREAM, 0), "mptcp": (socket.SOCK_STREAM, 262), "udp": (socket.SOCK_DGRAM, 0)}


def family_of(address):
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET


def open_socket(kind, address, *options):
    made = socket.socket(family_of(address), *TYPES[kind])
    made.settimeout(5)
    for option in options:
        made.setsockopt(socket.SOL_SOCKET, option, 1)
    return made


def text(address):
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


def name_of(error):
    return errno.errorcode.get(error.errno, str(error))


def attempt(call, *arguments):
    """The result of the call, or the name of its errno."""
    try:
        return call(*arguments)
    except OSError as error:
        return name_of(error)


def sockaddr(address):
    port = struct.pack(">H", address[1])
    if family_of(address) == socket.AF_INET:
        return struct.pack("<H", socket.AF_INET) + port + socket.inet_aton(address[0]) + bytes(8)
    ip = socket.inet_pton(socket.AF_INET6, address[0])
    return struct.pack("<H", socket.AF_INET6) + port + bytes(4) + ip + bytes(4)


def from_sockaddr(data):
    family, port = struct.unpack("<H", data[:2])[0], struct.unpack(">H", data[2:4])[0]
    if family == socket.AF_INET:
        return text((socket.inet_ntoa(data[4:8]), port))
    return text((socket.inet_ntop(socket.AF_INET6, data[8:24]), port))


def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def disconnect(used):
    check(LIBC.connect(used.fileno(), struct.pack("<H", 0) + bytes(14), 16))


def exchange(used, to=None):
    """Sends a request and returns the server's name, its view of the client, and the source that the socket reports."""
    used.sendto(b"who\n", tuple(to)) if to else used.sendall(b"who\n")
    data, source = used.recvfrom(512)
    name, _, peer = data.decode().split()[:3]
    return {"name": name, "client": peer.removeprefix("peer="), "from": text(source) if source else None}
