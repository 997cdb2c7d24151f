# The role "maker" creates sockets and passes them through the Unix socket ARGS["path"]. The role "user" dials by them.
# The role "setns" creates sockets, enters the network namespace ARGS["namespace"], and dials.
KINDS = ("tcp", "udp", "udp")


def make():
    return [open_socket(kind, ARGS["to"]) for kind in KINDS]


def dial(sockets):
    tcp, connected, unconnected = sockets
    for made in (tcp, connected):
        made.connect(tuple(ARGS["to"]))
    answers = [exchange(tcp), exchange(connected), exchange(unconnected, ARGS["to"])]
    reported = [text(tcp.getpeername()), text(connected.getpeername()), answers[2]["from"]]
    return [[answer["name"], answer["client"], at] for answer, at in zip(answers, reported)]


def maker():
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(ARGS["path"])
    listener.listen()
    print("ready", flush=True)
    channel, sockets = listener.accept()[0], make()
    socket.send_fds(channel, [b"x"], [made.fileno() for made in sockets])
    channel.recv(1)


def user():
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.connect(ARGS["path"])
    _, fds, _, _ = socket.recv_fds(channel, 1, len(KINDS))
    sockets = [socket.socket(fileno=fd) for fd in fds]
    for made in sockets:
        made.settimeout(5)
    print(json.dumps(dial(sockets)))


def setns():
    sockets = make()
    CLONE_NEWNET = 0x40000000
    check(LIBC.setns(os.open(ARGS["namespace"], os.O_RDONLY), CLONE_NEWNET))
    print(json.dumps(dial(sockets)))


{"maker": maker, "user": user, "setns": setns}[ARGS["role"]]()
