"""The pages are tested as they stand: the set-up runs against real servers, tables are those of the program, each command that is shown has
the options it is shown with, each link leads somewhere."""

import json
import os
import re
import shlex
import subprocess
import sys
import uuid

import pytest

from rig import pages, process, schema
from rig.examples import answers
from rig.private import private  # noqa: F401 - a fixture
from rig.queue import Queue
from rig.wait import wait_until

ROOT = pages.ROOT
README_LINES = 150
sys.path.insert(0, os.path.join(ROOT, "test", "bench"))


@pytest.mark.parametrize("page, marker, command", [
    ("deploy/oncall/commands.md", "commands", ["help"]), ("deploy/oncall/events.md", "events", ["explain"]),
    ("deploy/oncall/events.md", "reasons", ["explain", "--reasons"]), ("deploy/oncall/events.md", "stats", ["explain", "--stats"]),
    ("deploy/guides/application.md", "codes", ["explain", "--codes"]), ("conf/README.md", "keys", ["explain", "--keys"])])
def test_the_tables_of_the_program_are_current(page, marker, command):
    made = subprocess.run([schema.require_binary(), *command, "--markdown"], check=True, stdout=subprocess.PIPE).stdout.decode()
    if os.environ.get("ONCEWARD_UPDATE"):
        pages.put(page, marker, made)
    assert pages.part(page, marker) == made, "run this test with ONCEWARD_UPDATE=1"


def test_the_readme_is_short():
    assert len(pages.read("README.md").splitlines()) <= README_LINES


def test_the_picture_of_a_message_is_drawn_from_its_source():
    assert subprocess.run([sys.executable, pages.path("deploy/pictures/timeline.py"), "--check"], check=False).returncode == 0


def test_the_way_of_a_message_is_as_short_as_the_page_says():
    way = pages.read("src/README.md").split("## One message's way")[1].split("\n## ")[0]
    functions = [(path, name) for path, names in re.findall(r"`(\w+/\w+\.c)`:\s+((?:`\w+`(?:,\s*)?)+)", way) for name in re.findall(r"`(\w+)`", names)]
    assert len(functions) == len(set(functions)) == 60
    for path, name in functions:
        assert re.search(rf"^[a-z][\w ]*[ *]{name}\(", pages.read(f"src/{path}"), re.M), f"{path} has no {name}"


def test_each_link_leads_somewhere():
    wrong = []
    for page in pages.all_pages():
        text = re.sub(r"```.*?```", "", pages.read(page), flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"https?:|mailto:", target):
                continue
            name, _, anchor = target.partition("#")
            there = os.path.normpath(os.path.join(os.path.dirname(page), name)) if name else page
            if not os.path.exists(pages.path(there)) or there.startswith(".."):
                wrong.append(f"{page}: {target}: no such file")
            elif anchor and anchor not in pages.anchors(there):
                wrong.append(f"{page}: {target}: no such heading")
    assert not wrong, "\n".join(wrong)


def test_each_page_is_reached_from_the_readme():
    reached, todo = set(), ["README.md"]
    while todo:
        page = todo.pop()
        if page in reached:
            continue
        reached.add(page)
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", pages.read(page)):
            there = os.path.normpath(os.path.join(os.path.dirname(page), target))
            if os.path.isdir(pages.path(there)):
                there = os.path.join(there, "README.md")
            if there.endswith(".md") and os.path.exists(pages.path(there)):
                todo.append(there)
    unreached = sorted(set(pages.all_pages()) - reached)
    assert not unreached, f"no page links to {unreached}"


def test_each_page_links_to_the_words():
    without = [page for page in pages.all_pages() if "words.md" not in pages.read(page) and not page.endswith("/words.md")]
    assert not without, without


def test_each_file_that_is_shown_is_that_file():
    n = 0
    for page in pages.all_pages():
        for name in re.findall(r"<!-- file: (\S+) -->", pages.read(page)):
            with open(pages.path(name), encoding="utf-8") as f:
                assert pages.code(page, f"file: {name}") == f.read(), f"{page} shows another {name}"
            n += 1
    assert n >= 2


def test_the_lines_that_an_example_shows_are_its_own():
    n = 0
    for page in pages.all_pages():
        for name, block in re.findall(r"^The lines that matter in \[[^]]*\]\(([^)]+)\):\n\n```\w+\n(.*?)```", pages.read(page), re.S | re.M):
            with open(pages.path(os.path.join(os.path.dirname(page), name)), encoding="utf-8") as f:
                lines = {line.strip() for line in f}
            strange = [line for line in block.split("\n") if line.strip() not in lines | {"", "…"}]
            assert not strange, f"{page} shows what {name} does not have: {strange}"
            n += 1
    assert n >= 10


def test_each_source_that_is_named_exists():
    """Between backticks, by its path or the end of it; {a,b} is not spelled out."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, check=False)
    if listed.returncode:
        pytest.skip("no checkout")
    there = ["/" + path for path in listed.stdout.decode().split("\n")]
    wrong, n = [], 0
    for page in ("src/README.md", ".github/CONTRIBUTING.md", "test/README.md"):
        for name in re.findall(r"`([\w./-]+\.(?:c|h|def|py|json|md))`", pages.read(page)):
            n += 1
            if not any(path.endswith("/" + name) for path in there):
                wrong.append(f"{page}: {name}")
    assert n > 20 and not wrong, wrong


def test_each_revision_that_is_named_is_a_commit():
    git = lambda *words, **more: subprocess.run(["git", "-C", ROOT, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, **more)
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != b"false":
        pytest.skip("no checkout with its history")
    named = {revision: page for page in pages.all_pages() for revision in re.findall(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,40}\b", pages.read(page))}
    known = git("cat-file", "--batch-check", input="".join(f"{revision}^{{commit}}\n" for revision in named).encode()).stdout.decode().splitlines()
    wrong = [f"{page}: {revision}" for (revision, page), line in zip(named.items(), known) if line.split()[1:2] != ["commit"]]
    assert len(named) == len(known) > 10 and not wrong, wrong


def test_the_short_figures_are_those_of_the_long_table():
    from lib import publish
    assert pages.part("README.md", "short figures") == publish.short(pages.part("test/README.md", "figures"))


def test_the_short_figures_of_the_peers_are_those_of_the_long_tables():
    from lib import peer_groups
    rows = lambda page, marker: {cells[0]: cells[1:] for cells in ([c.strip() for c in line.strip("|").split("|")] for line in
                                 pages.part(page, marker).splitlines() if line.startswith("| "))}
    shown, long = rows("test/README.md", "short peers"), [
        line for line in pages.part("test/README.md", "peers").splitlines() if line.startswith("| ")]
    labels = {name: label for label, name in peer_groups.NAMES.items()}
    assert len(shown) > 5
    for name, cells in shown.items():
        label = labels.get(name, name)
        there = {c.strip() for line in long if line.startswith((f"| {label} |", f"| {peer_groups.BEST.get(label, label)} |")) for c in line.split("|")}
        numbers = {n for cell in there for n in cell.split(", ")} | there
        for cell in cells:
            assert not name or all(n in numbers for n in cell.split(" to ")), f"{name}: {cell} is not in the long tables"


def test_the_message_ids_that_are_advised_are_valid():
    rows = lambda marker: [line.strip("|").split("|") for line in pages.part("conf/README.md", marker).splitlines()[2:]]
    named = sorted({value for row in rows("libraries with ids") for value in re.findall(r"`(\[.*?\])`", row[2])})
    assert len(rows("publishers")) >= 11 and all(len(row) == 3 and re.search(r"\d", row[2]) for row in rows("publishers")) and len(named) >= 4
    queues = {f"q{i}": {"forward": {"url": "http://127.0.0.1/"}, "message_id": json.loads(value)} for i, value in enumerate(named)}
    config = {"broker": {"url": "amqp://localhost/"}, "database": {"url": "postgresql://localhost/a"}, "queues": queues}
    said = subprocess.run([schema.require_binary(), "check", "--config", "-"], input=json.dumps(config).encode(), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    assert said.returncode == 0, said.stdout.decode()


def test_each_key_is_described_in_two_sentences():
    entries = re.findall(r"^#### `([\w.]+)`\n\n.*?\n\n(.*?)\n(?=\n)", pages.part("conf/README.md", "keys"), re.M | re.S)
    long = {path: text for path, text in entries if len(re.findall(r"[.!?](?:\s|$)", text)) > 2}
    assert len(entries) > 60 and not long, long


# What an example needs beside it.
COMPANIONS = {
    "broker.port": {"broker.host": "localhost"}, "broker.vhost": {"broker.host": "localhost"}, "consumer_timeout": {"max_window": "2h"},
    "max_window": {"consumer_timeout": "3h"}, "queue": {"consumer": "orders"},
    "order.key": {"max_message": "256KiB", "delivery_limit": 0}, "order.unkeyed": {"order.key": ["header:a"], "max_message": "256KiB"},
    "order.on_dead": {"order.key": ["header:a"], "max_message": "256KiB"},
    "forward.batch.max_bytes": {"forward.batch.max_messages": 100}}
FILES_OF_TLS = "ca_file", "cert_file", "key_file"


def with_key(config, is_queue, path, value):
    """Sets the key, with an object for each part of its path."""
    at = config["queues"]["payments"] if is_queue else config
    *groups, name = path.split(".")
    for group in groups:
        at = at.setdefault(group, {})
    at[name] = value


def test_each_example_of_a_key_is_accepted():
    entries = re.findall(r"^(### The queue)|^#### `([\w.]+)`\n\n(.*?)\n\n", pages.part("conf/README.md", "keys"), re.M | re.S)
    is_queue, n = False, 0
    for heading, path, line in entries:
        is_queue = is_queue or bool(heading)
        if heading or path.split(".")[-1] in FILES_OF_TLS:
            continue
        n += 1
        config = {"queues": {"payments": {"forward": {"url": "http://127.0.0.1/"}}}, "database": {"url": "postgresql://localhost/a"}}
        values = {path: json.loads(line.replace("\n", " ").split("example `")[1].rstrip("`")), **COMPANIONS.get(path, {})}
        for key, value in values.items():
            with_key(config, is_queue, key, value)
        if "host" not in config.setdefault("broker", {}):
            config["broker"].setdefault("url", "amqp://localhost/")
        said = subprocess.run([schema.quick_binary(), "check", "--config", "-"], input=json.dumps(config).encode(), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        assert said.returncode == 0, f"{path}: {said.stdout.decode()}"
    assert n > 60


# --- commands ---

def shown_commands(page):
    """Each `onceward …` of the page: in lines of code, and between backticks."""
    text = pages.read(page)
    lines = []
    for block in re.findall(r"```(?:sh|console|yaml)?\n(.*?)```", text, re.S):
        lines += block.replace("\\\n", " ").split("\n")
    lines += re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))
    for line in lines:
        found = re.match(r"\s*(?:build/)?onceward (\w[\w-]*[^#|;&>]*)", line)
        if found:
            yield found.group(1).strip()


def options_of(command):
    said = subprocess.run([schema.require_binary(), command, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert said.returncode == 0, f"onceward {command} --help answers {said.returncode}"
    return set(re.findall(r"--[a-z][a-z-]*", said.stdout.decode())) | {"--help", "--version"}


def test_each_command_that_is_shown_has_its_options():
    listed = subprocess.run([schema.require_binary(), "--help"], check=True, stdout=subprocess.PIPE).stdout.decode()
    commands = set(re.findall(r"^  ([\w-]+) ", listed, re.M))
    known, wrong, n = {}, [], 0
    for page in pages.all_pages():
        for line in shown_commands(page):
            command = line.split()[0]
            n += 1
            if command not in commands:
                wrong.append(f"{page}: onceward {line}: no such command")
                continue
            if command not in known:
                known[command] = options_of(command)
            unknown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", line)) - known[command]
            if unknown:
                wrong.append(f"{page}: onceward {line}: no such option: {', '.join(sorted(unknown))}")
    assert n > 60 and not wrong, "\n".join(wrong)


def test_each_option_on_the_page_of_the_commands_is_that_of_a_command():
    page = pages.read("deploy/oncall/commands.md")
    commands = re.findall(r"^\| `onceward ([\w-]+)", pages.part("deploy/oncall/commands.md", "commands"), re.M)
    shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page))
    assert len(shown) > 30 and shown <= set().union(*map(options_of, commands))


def test_each_program_of_the_tree_that_is_shown_is_there():
    wrong, n = [], 0
    for page in pages.all_pages():
        for block in re.findall(r"```sh\n(.*?)```", pages.read(page), re.S):
            for line in block.split("\n"):
                word = line.split()[0] if line.split() else ""
                if re.match(r"(?:test|deploy)/", word):
                    n += 1
                    if not os.access(pages.path(word), os.X_OK):
                        wrong.append(f"{page}: {line}")
    assert n > 10 and not wrong, "\n".join(wrong)


# --- the set-up ---


def shell(text, **environment):
    done = subprocess.run(["sh", "-euc", text], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
                          env=dict(os.environ, **environment), cwd=ROOT)
    return done.returncode, done.stdout.decode(errors="replace")


class SetUp:
    """The lines of the README's set-up, with the program that is there and the ports and names of the rig."""

    def __init__(self, rabbitmq, server, queue, folder):
        self.port = process.free_port()
        self.here = ((":5672/", f":{rabbitmq.port}/"), (":5432/", f":{server.port}/"), ("@localhost:", "@127.0.0.1:"), ("8080", str(self.port)))
        self.queue = queue
        with open(os.path.join(ROOT, "conf", "payments.json"), encoding="utf-8") as f:
            config = self._there(f.read()).replace('"payments": {', f'"{queue}": {{').replace("/tmp/onceward/payments", f"{folder}/state")
        self.config = folder / "payments.json"
        self.config.write_text(config)
        build, *self.lines = [line for line in pages.code("README.md", "set-up").split("\n") if line and not line.startswith("#")]
        assert build.startswith("meson setup build")

    def _there(self, text):
        for here, there in self.here:
            text = text.replace(here, there)
        return text

    def line(self, text):
        text = self._there(text).replace("build/onceward", schema.require_binary()).replace("conf/payments.json", str(self.config))
        return re.sub(r"(deploy/examples/publish \S+) payments ", rf"\1 {self.queue} ", text)


def test_the_set_up_works_as_it_is_written(private, rabbitmq, tmp_path):
    """Its lines, in their order, up to what the last one prints: the message is completed, and its copy was none."""
    server = private.unstarted().init()
    with open(os.path.join(server.data, "pg_hba.conf"), "w") as f:
        f.write("host all postgres all trust\nhost all all all scram-sha-256\n")  # so the passwords count
    server.start()
    server.query("CREATE DATABASE app")
    queue = Queue(rabbitmq, "readme-" + uuid.uuid4().hex[:8])
    made = SetUp(rabbitmq, server, queue.name, tmp_path)
    children, variables = [], {}
    *steps, last = [made.line(line) for line in made.lines]
    try:
        for line in steps:
            assigned = re.fullmatch(r"(?:export )?((?:\w+=\S+ ?)+)", line)
            if assigned:
                variables.update(word.split("=", 1) for word in shlex.split(assigned.group(1)))
            elif line.endswith("&"):
                children.append(process.spawn(shlex.split(line[:-1]), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                              stderr=subprocess.DEVNULL, env=dict(os.environ, **variables), cwd=ROOT))
                if "application.py" in line:
                    wait_until(lambda: answers(made.port), "the application listens")
            else:
                status, said = shell(line, **variables)
                assert status == 0 and not re.search("^warn ", said, re.M), f"{line}\n{said}"
        assert len(children) == 2

        def is_done():
            status, said = shell(last, **variables)
            assert status == 0, said
            return re.search(r"order-1 +\| completed +\| +1\b", said) and said.count("(1 row)") == 2
        wait_until(is_done, "the message is completed, once, and the charge booked", 30)
        process.reap(children.pop())
        queue.assert_empty()

        # The application's login may complete tokens; both are refused what the owner may.
        psql = f"psql postgresql://payments_app:change-me-too@127.0.0.1:{server.port}/app -c"
        status, said = shell(f'{psql} "SELECT onceward.complete(\'x\')"')
        assert status == 1 and "not a transaction token" in said, said
        status, said = shell(f'{psql} "SELECT * FROM onceward.inbox"')
        assert status == 1 and "permission denied" in said, said
        status, said = shell(f"{schema.require_binary()} migrate --config {made.config}")
        assert status == 1 and "--database" in said, said
    finally:
        for child in children:
            child.kill()
            process.reap(child)
        queue.delete()
        rabbitmq.connect().channel().queue_delete(queue.name + "-dead")
        queue.close()


@pytest.mark.parametrize("page, name", [("README.md", "payments.json")])
def test_the_configuration_of_the_set_up_is_the_sample(page, name):
    stands = re.search(r"```json\n(.*?)```", pages.read(page), re.S).group(1)
    with open(os.path.join(ROOT, "conf", name), encoding="utf-8") as f:
        assert json.loads(stands) == json.load(f)
