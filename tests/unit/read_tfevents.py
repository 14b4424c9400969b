"""Reads an event file with a decoder of its own: prints [step, tag, value] of every scalar as JSON lines."""
import json, struct, sys


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(data):
    """Yields (field number, value) of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        yield key >> 3, data[at : at + size]
        at += size
        assert at <= len(data)


data = open(sys.argv[1], "rb").read()
at = 0
while at < len(data):
    (length,), (crc,) = struct.unpack_from("<Q", data, at), struct.unpack_from("<I", data, at + 8)
    assert crc == masked(data[at : at + 8])
    payload = data[at + 12 : at + 12 + length]
    assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(payload)
    at += 16 + length
    event = dict(fields(payload))
    assert struct.unpack("<d", event[1])[0] > 1e9
    if 3 in event:
        print(json.dumps([event.get(2, 0), "version", event[3].decode()]))
    for number, value in fields(event.get(5, b"")):
        scalar = dict(fields(value))
        print(json.dumps([event[2], scalar[1].decode(), struct.unpack("<f", scalar[2])[0]]))
