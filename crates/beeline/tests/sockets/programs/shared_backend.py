# Sockets with one local port that dial two services. Both services have one backend.
first, second = (tuple(service) for service in ARGS["services"])
result = {}
for name, option in (("reuseaddr", socket.SO_REUSEADDR), ("reuseport", socket.SO_REUSEPORT)):
    one, two = (open_socket("tcp", ARGS["own"], option) for _ in range(2))
    for made in (one, two):
        made.bind((ARGS["own"][0], ARGS[name]))
    result[name] = [attempt(one.connect, first), attempt(two.connect, second)]
    result[name] += [text(one.getpeername()), attempt(lambda: text(two.getpeername())), exchange(one)["name"]]
    # Closed with a reset, so that the port has no connection in TIME_WAIT.
    for made in (one, two):
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        made.close()
# Without bind() the kernel chooses two local ports.
unbound = [open_socket("tcp", ARGS["own"]) for _ in range(2)]
for made, service in zip(unbound, (first, second)):
    made.connect(service)
result["unbound"] = [text(made.getpeername()) for made in unbound]
udp = open_socket("udp", ARGS["own"])
result["udp"] = []
for order in ((first, second), (second, first), (first, first)):
    for service in order:
        udp.sendto(b"who\n", service)
    result["udp"].append([text(udp.recvfrom(512)[1]) for _ in order])
print(json.dumps(result))
