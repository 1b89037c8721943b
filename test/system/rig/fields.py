"""AMQP header fields of kinds that pika does not send by itself: Typed('s', -5) in a table goes as a 16-bit integer."""

import struct

import pika.data

FORMATS = {"t": ">?", "b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">Q", "f": ">f", "d": ">d",
           "T": ">Q"}


class Typed:
    def __init__(self, kind, value=None):
        self.kind = kind
        self.value = value

    def encode(self):
        if self.kind == "V":
            packed = b""
        elif self.kind == "D":
            packed = struct.pack(">BI", *self.value)
        elif self.kind in "Sx":
            packed = struct.pack(">I", len(self.value)) + self.value
        else:
            packed = struct.pack(FORMATS[self.kind], self.value)
        return self.kind.encode() + packed


_encode_value = pika.data.encode_value


def _encode(pieces, value):
    if not isinstance(value, Typed):
        return _encode_value(pieces, value)
    data = value.encode()
    pieces.append(data)
    return len(data)


pika.data.encode_value = _encode
