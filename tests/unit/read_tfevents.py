"""Reads an event file with a decoder of its own: prints [step, tag, value] of every scalar as JSON lines."""
import json, pathlib, struct, sys

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from protobuf_fields import fields


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
