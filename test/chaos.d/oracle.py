"""Compares what was published with what came of it. Each check answers a list of faults; an empty one is a pass."""

import collections
import datetime
import json
import urllib.parse

from schedule import GRACE, MAX_ATTEMPTS, NEVER_ACTS, WINDOW

TOLERANCE = 0.3  # between a request's arrival and a commit, on one machine
NEVER_FAIL = {"plain", "large"}
HIDES = {"kill_pod", "ended"}  # besides what befalls the application
# In `response`, the application itself makes these happen twice: it acts, and its answer does not become a completion.
REPEATS = {"acts_then_fails", "resets_after", "hangs", "extends", "slow"}


class Oracle:
    def __init__(self, messages, publishers, pods, disturbances, postgres, queues):
        self.pods, self.queues, self.disturbances, self.postgres = pods, queues, disturbances, postgres
        self.messages = messages
        self.sent = collections.Counter()
        for p in publishers:
            self.sent.update({(p.queue, body): n for body, n in p.n_sent.items()})
        self.kinds = {(m.queue, m.message_id): m.kind for m in messages if m.message_id}
        rows = postgres.query("SELECT consumer, message_id, status::text, attempt, extract(epoch FROM completed_at)::float8,"
                              " extract(epoch FROM received_at)::float8, last_error, replace(token::text, '-', ''), takeovers FROM onceward.inbox")
        self.rows = {(r[0], r[1]): dict(status=r[2], attempt=r[3], completed=r[4], received=r[5], error=r[6], token=r[7], takeovers=r[8])
                     for r in rows}
        self.effects = collections.defaultdict(list)
        for queue, message_id, version, token, pod, attempt, arrived, at, invoice in postgres.query(
                "SELECT queue, message_id, version, token, pod, attempt, extract(epoch FROM arrived)::float8, extract(epoch FROM at)::float8,"
                " invoice FROM app.effect ORDER BY at"):
            self.effects[queue, message_id].append(dict(version=version, token=token, pod=pod, attempt=attempt, arrived=arrived, at=at,
                                                        invoice=invoice))
        self.letters = collections.defaultdict(list)
        self.rowless = collections.Counter()
        self.last_rowless = {}
        for queue, message_id, reason, attempts, error, body, died in postgres.query(
                "SELECT consumer, message_id, reason, attempts, last_error, body, extract(epoch FROM died_at)::float8"
                " FROM onceward.dead_letter WHERE consumer <> 'onceward-outbox' ORDER BY died_at"):
            self.letters[queue, message_id].append(dict(reason=reason, attempts=attempts, error=error, body=bytes(body)))
            self.rowless[queue, bytes(body), reason] += 1
            self.last_rowless[queue, bytes(body), reason] = died
        self.requests = collections.defaultdict(list)
        for pod in pods:
            for r in pod.requests():
                self.requests[r["queue"], r["id"]].append(r)
        self.shared = collections.defaultdict(list)  # kinds, by request
        for key, posts in self.requests.items():
            posts.sort(key=lambda r: r["at"])
            for r in posts:
                if "n" in r:
                    self.shared[r["request"]].append(self.kinds.get(key))

    @staticmethod
    def is_transaction(queue):
        return "transaction" in queue

    def nothing_lost(self):
        """Every confirmed message has its effect, or its letter; of those without an id each that says the same has its own."""
        faults = []
        alike = collections.Counter((m.queue, m.body, NEVER_ACTS[m.kind]) for m in self.messages if m.kind in ("no_id", "bad_id"))
        for (queue, body, reason), n in alike.items():
            if self.rowless[queue, body, reason] < n:
                faults.append(f"{queue}: {self.rowless[queue, body, reason]} letters ({reason}) of {n} messages {body[:40]!r}")
        for m in self.messages:
            key = (m.queue, m.message_id)
            if m.kind in ("no_id", "bad_id"):
                continue
            if m.kind in NEVER_ACTS:
                if not self.letters[key]:
                    faults.append(f"{key}: {m.kind}, and no letter: {self.rows.get(key)}")
            elif not self.effects[key] and not self.letters[key]:
                faults.append(f"{key}: {m.kind}, no effect and no letter: {self.rows.get(key)}")
        return faults

    def nothing_doubled(self):
        """In transaction: one effect, exactly where the row is completed."""
        faults = []
        for key, effects in self.effects.items():
            if self.is_transaction(key[0]) and len(effects) > 1:
                faults.append(f"{key}: {len(effects)} effects: {effects}")
        for key, row in self.rows.items():
            if self.is_transaction(key[0]) and (row["status"] == "completed") != (len(self.effects[key]) == 1):
                faults.append(f"{key}: {len(self.effects[key])} effects, and the row says {row}")
        return faults

    def completed_has_effect(self):
        """In response: a completed row has an effect, with the version of one body only."""
        faults = []
        for key, row in self.rows.items():
            if not self.is_transaction(key[0]) and row["status"] == "completed" and not self.effects[key]:
                faults.append(f"{key}: completed, and no effect")
            if len({e["version"] for e in self.effects[key]}) > 1:
                faults.append(f"{key}: effects of different bodies under one id")
        return faults

    def disturbed(self, pods, start, end):
        """Did anything befall one of these pods, or everybody, in that time?"""
        return [d for d in self.disturbances if d[0] <= end and d[1] >= start and (d[3] is None or d[3] in pods)]

    def repeats_explained(self):
        """In response: another effect of a message only when the answer to the one before could not become a completion."""
        faults, self.n_repeated = [], 0
        for key, effects in self.effects.items():
            if self.is_transaction(key[0]) or len(effects) < 2:
                continue
            self.n_repeated += len(effects) - 1
            if len({e["token"] for e in effects}) != len(effects):
                faults.append(f"{key}: two effects with one token: {effects}")
            for e in sorted(effects, key=lambda e: e["arrived"])[:-1]:
                if self.kinds.get(key) in REPEATS or self.company(key) & REPEATS:
                    continue
                if not self.disturbed({e["pod"]}, e["arrived"] - WINDOW - GRACE, e["at"] + WINDOW + GRACE):
                    faults.append(f"{key}: repeated though nothing had befallen {e['pod']}: {effects} {self.row_text(key)}")
        return faults

    def row_text(self, key):
        return f"row {self.rows.get(key)}"

    def never_posted_completed(self):
        """No request comes for a row that is completed, unless it was on its way and was held up."""
        faults = []
        for key, posts in self.requests.items():
            completed = self.rows.get(key, {}).get("completed")
            for r in posts if completed else ():
                if r["at"] > completed + TOLERANCE and not self.disturbed({r["pod"]}, completed - WINDOW, r["at"]):
                    faults.append(f"{key}: POSTed {r['at'] - completed:.3f} s after its completion, attempt {r['attempt']} by {r['pod']}")
        return faults

    def keys_are_the_same(self):
        """Every request of a message carries its Idempotency-Key; no token goes out twice."""
        faults = []
        for key, posts in self.requests.items():
            wanted = '"' + urllib.parse.quote(key[1], safe="-._~") + '"'
            for r in posts:
                if r["key"] != wanted and "n" not in r:
                    faults.append(f"{key}: Idempotency-Key {r['key']}")
            tokens = collections.Counter(r["token"] for r in posts)
            faults += [f"{key}: {n} requests with one token" for n in tokens.values() if n > 1]
        return faults

    def no_living_token_taken(self):
        """No replica takes a message over while its token is valid: its window, as sent with the request, and the grace must be over."""
        faults, self.n_taken_over = [], 0
        for pod in self.pods:
            for e in pod.sidecar.find("taken_over"):
                at = datetime.datetime.fromisoformat(e["ts"].replace("Z", "+00:00")).timestamp()
                self.n_taken_over += 1
                before = [r for r in self.requests[e["queue"], e["message_id"]] if r["at"] < at]
                if not before:
                    continue
                last = before[-1]
                own = self.is_transaction(e["queue"]) and last["pod"] == pod.name  # its state file keeps its name
                held_up = any(d[2].startswith(("freeze", "stop")) for d in self.disturbed({last["pod"]}, last["at"] - 20, last["at"]))
                if at < last["at"] + last["window"] + GRACE - TOLERANCE and not own and not held_up:
                    faults.append(f"{e['queue']}, {e['message_id']}: taken over by {pod.name} {at - last['at']:.3f} s after its POST by "
                                  f"{last['pod']}, whose window was {last['window']:.3f} s")
        return faults

    def all_settled(self):
        """No row is left in between, and there is no row that nobody published."""
        faults = [f"{key}: {row}" for key, row in self.rows.items() if row["status"] not in ("completed", "dead")]
        return faults + [f"{key}: a row that nobody published" for key in self.rows if key not in self.kinds]

    def attempts_are_used_up(self, key, letter):
        """No fewer than asked for, and beyond that takeovers only: they count as attempts, and are not charged."""
        row = self.rows.get(key)
        return MAX_ATTEMPTS <= letter["attempts"] <= MAX_ATTEMPTS + (row and row["takeovers"] or 0)

    def letters_explained(self):
        """Each letter has the reason that its message gives; a row has one letter exactly where it is dead."""
        faults = []
        for (queue, message_id), letters in self.letters.items():
            key = (queue, message_id)
            for letter in letters:
                body = json.loads(letter["body"])
                kind = body["kind"]
                wanted = {"mismatch": "body_mismatch"}.get(kind) or NEVER_ACTS.get(kind)
                if letter["reason"] != wanted:
                    faults.append(f"{key}: {kind} died of {letter['reason']}, attempts {letter['attempts']}: {letter['error']}")
                elif wanted == "attempts" and not self.attempts_are_used_up(key, letter):
                    faults.append(f"{key}: {kind} died after {letter['attempts']} attempts")
            row = self.rows.get(key)
            if message_id is not None and row and len([x for x in letters if x["reason"] != "body_mismatch"]) != (row["status"] == "dead"):
                faults.append(f"{key}: {len(letters)} letters, and the row is {row['status']}")
        for (queue, body, reason), n in self.rowless.items():
            # Whatever comes between a letter's commit and the reject brings the message again. Nothing tells then whether it is the one
            # that has the letter or another that says the same: so it has another.
            last = self.last_rowless[queue, body, reason]
            again = len(self.disturbed({pod.name for pod in self.pods}, last - 20, last))
            if n > self.sent[queue, body] + again:
                faults.append(f"{queue}: {n} letters ({reason}) of {self.sent[queue, body]} copies of {body[:40]!r}")
        for key, row in self.rows.items():
            if row["status"] == "dead" and not self.letters[key]:
                faults.append(f"{key}: dead without a letter")
        return faults

    def no_bugs_said(self):
        """The logs: valid, without a sanitizer's report, without a bug of the machine; each pause of a life that ended well has its end."""
        faults = []
        for pod in self.pods:
            faults += [f"{pod.name}: {f}" for f in pod.faults]
            faults += [f"{pod.name}: {f}" for f in pod.sidecar.check()]
            faults += [f"{pod.name}: {e}" for e in pod.sidecar.find("bug")[:5]]
        return faults

    # requests with several messages

    def company(self, key):
        """The kinds of the other messages in its requests."""
        return {kind for r in self.requests[key] for kind in self.shared.get(r.get("request"), ())}

    def batch_figures(self):
        sizes = [len(kinds) for kinds in self.shared.values()]
        return (f"requests: {len(sizes)} with {sum(sizes)} messages, the largest {max(sizes, default=0)}, {sum(n > 1 for n in sizes)} with several; "
                f"charged though they never fail by themselves: {self.n_charged}, of these {self.n_charged_alone} were alone")

    def no_neighbour_charged(self):
        """A message that does not fail by itself is charged only for a request that it had alone. One that the application did not see
        leaves no trace, so something must have hidden it."""
        faults, self.n_charged, self.n_charged_alone = [], 0, 0
        for key, row in self.rows.items():
            if self.kinds.get(key) not in NEVER_FAIL or row["status"] != "completed" or row["attempt"] <= 1:
                continue
            self.n_charged += 1
            posts = self.requests[key]
            if any(r["n"] == 1 for r in posts):
                self.n_charged_alone += 1
                continue
            hidden = [d for d in self.disturbed({pod.name for pod in self.pods}, row["received"], row["completed"])
                      if d[2] in HIDES or d[2].endswith("_application")]
            if not hidden:
                faults.append(f"{key}: attempt {row['attempt']}, and always in company: {posts} {self.row_text(key)}")
        return faults

    def batch_checks(self):
        return (("no attempt charged to a neighbour", self.no_neighbour_charged),)

    def checks(self):
        return (("lost 0", self.nothing_lost), ("doubled 0 (transaction)", self.nothing_doubled),
                ("every completion has its effect (response)", self.completed_has_effect),
                ("repeated only in the documented window (response)", self.repeats_explained),
                ("no POST for a completed row", self.never_posted_completed),
                ("no living token taken over", self.no_living_token_taken),
                ("one Idempotency-Key a message, one request a token", self.keys_are_the_same),
                ("nothing left unsettled", self.all_settled), ("every dead letter explained", self.letters_explained),
                ("nothing wrong in the logs", self.no_bugs_said))
