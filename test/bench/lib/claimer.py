"""Claims as the sidecar sends them: one prepared statement, arrays in binary form, several calls in a pipeline. psycopg2 sends texts, which cost
the server more than what is compared."""

import ctypes
import hashlib
import os
import struct

LIBPQ = ctypes.CDLL("libpq.so.5")
LIBPQ.PQconnectdb.restype = LIBPQ.PQprepare.restype = LIBPQ.PQgetResult.restype = ctypes.c_void_p
LIBPQ.PQerrorMessage.restype = ctypes.c_char_p
INT4, BYTEA, TEXT, UUID = (23, 1007), (17, 1001), (25, 1009), (2950, 2951)  # of an element, of the array
TYPES = (INT4, TEXT, UUID, BYTEA, UUID)
CLAIM = (b"SELECT ord, answer FROM onceward.sidecar_claim_many(true, 'bench', 1, false, NULL, 2000, '{c}', '{30s}', '{60s}', '{8}', '{3}',"
         b" $1, $2, $3, $4, NULL, NULL, NULL, NULL, $5)")
COMMAND_OK, TUPLES_OK, PIPELINE_SYNC = 1, 2, 10


def array(kind, elements):
    return struct.pack(">5i", 1, 0, kind[0], len(elements), 1) + b"".join(struct.pack(">i", len(e)) + e for e in elements)


class Claimer:
    """hashes: it sends the hashes of the ids, as for a queue with compact_after."""

    def __init__(self, dsn, hashes):
        self.hashes = hashes
        self.connection = ctypes.c_void_p(LIBPQ.PQconnectdb(dsn.encode()))
        self.pid = LIBPQ.PQbackendPID(self.connection)
        types = (ctypes.c_uint * len(TYPES))(*(of_array for _, of_array in TYPES))
        result = ctypes.c_void_p(LIBPQ.PQprepare(self.connection, b"claim", CLAIM, len(TYPES), types))
        self._expect(LIBPQ.PQresultStatus(result) == COMMAND_OK and LIBPQ.PQenterPipelineMode(self.connection))
        LIBPQ.PQclear(result)

    def _expect(self, done):
        if not done:
            raise SystemExit(LIBPQ.PQerrorMessage(self.connection).decode())

    def parameters(self, ids):
        """Of a call that claims these new ids, which are sorted."""
        n, texts = len(ids), [i.encode() for i in ids]
        given = [array(INT4, [struct.pack(">i", 1)] * n), array(TEXT, texts), array(UUID, [os.urandom(16) for _ in ids]), array(BYTEA, [b"\0"] * n),
                 array(UUID, [hashlib.sha256(b"c\0" + text).digest()[:16] for text in texts]) if self.hashes else None]
        return (ctypes.c_char_p * len(given))(*given), (ctypes.c_int * len(given))(*(len(g or b"") for g in given))

    def send(self, calls):
        """Each call is a transaction."""
        binary = (ctypes.c_int * len(TYPES))(*[1] * len(TYPES))
        for values, lengths in calls:
            self._expect(LIBPQ.PQsendQueryPrepared(self.connection, b"claim", len(TYPES), values, lengths, binary, 1)
                         and LIBPQ.PQpipelineSync(self.connection))
        for _ in calls:
            self._read(TUPLES_OK)

    def set(self, name, value):
        self._expect(LIBPQ.PQsendQueryParams(self.connection, f"SET {name} = {value}".encode(), 0, None, None, None, None, 0)
                     and LIBPQ.PQpipelineSync(self.connection))
        self._read(COMMAND_OK)

    def _read(self, status):
        for expected in (status, None, PIPELINE_SYNC):
            result = LIBPQ.PQgetResult(self.connection)
            self._expect((result and LIBPQ.PQresultStatus(ctypes.c_void_p(result))) == expected)
            LIBPQ.PQclear(ctypes.c_void_p(result))

    def close(self):
        LIBPQ.PQfinish(self.connection)
