# Groups of sockets with SO_REUSEPORT, all bound to ARGS["own"]. ARGS["services"] are pairs of a service and its backend.
GROUP = 4
services = ARGS["services"]


def group(kind, port):
    made = [open_socket(kind, ARGS["own"], socket.SO_REUSEPORT) for _ in range(GROUP)]
    for member in made:
        member.bind((ARGS["own"][0], port))
    return made


def collect(members, count):
    """Per answer: the number of the member that received it, the reported source, and the backend that answered."""
    answers, end = [], time.monotonic() + 10
    while len(answers) < count and time.monotonic() < end:
        for ready in select.select(members, [], [], 0.2)[0]:
            data, source = ready.recvfrom(512)
            answers.append([members.index(ready), text(source), data.decode().split()[1]])
    return answers


def all_members_use_all_services():
    members = group("udp", 7000)
    for member in members:
        for service in services:
            member.sendto(b"who\n", tuple(service))
    return collect(members, GROUP * len(services))


def each_member_uses_its_own_services():
    members = group("udp", 7001)
    for number, service in enumerate(services):
        members[number % GROUP].sendto(b"who\n", tuple(service))
    return collect(members, len(services))


def connected_members():
    members = group("udp", 7002)
    for member, service in zip(members, services):
        member.connect(tuple(service))
    for member in members:
        member.send(b"who\n")
    return [answer + [text(members[answer[0]].getpeername())] for answer in collect(members, GROUP)]


def tcp_members():
    members = group("tcp", 7003)
    for member, service in zip(members, services):
        member.connect(tuple(service))
    answers = [exchange(member)["name"] for member in members]
    return [[text(member.getpeername()), answer] for member, answer in zip(members, answers)]


def tcp_listeners():
    """Connections that a group accepts: the client's own address, and the address that the accepted socket reports."""
    listeners = group("tcp", 7004)
    for listener in listeners:
        listener.listen()
    clients = [open_socket("tcp", ARGS["own"]) for _ in range(16)]
    for client in clients:
        client.connect((ARGS["own"][0], 7004))
    accepted, end = [], time.monotonic() + 10
    while len(accepted) < len(clients) and time.monotonic() < end:
        for ready in select.select(listeners, [], [], 0.2)[0]:
            accepted.append(ready.accept()[0])
    return [sorted(text(c.getsockname()) for c in clients), sorted(text(a.getpeername()) for a in accepted)]


parts = (
    all_members_use_all_services, each_member_uses_its_own_services, connected_members, tcp_members, tcp_listeners
)
print(json.dumps({part.__name__: part() for part in parts}))
