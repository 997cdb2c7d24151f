# Waits for one datagram at ARGS["at"] and prints its first bytes.
server = open_socket("udp", ARGS["at"])
server.settimeout(20)
server.bind(tuple(ARGS["at"]))
print("ready", flush=True)
print(json.dumps({"first": server.recvfrom(2048)[0][:8].hex()}))
