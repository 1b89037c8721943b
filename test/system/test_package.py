"""What is shipped for machines without Kubernetes: the Debian package, its service, the compose file. deploy/package/test installs and
runs the package in a root of its own."""

import json
import os
import re
import shutil
import subprocess
import uuid

import pytest

from rig import schema

pytestmark = pytest.mark.deploy

DEPLOY = os.path.join(os.path.dirname(__file__), "../../deploy")
UNIT = os.path.join(DEPLOY, "package/onceward@.service")
COMPOSE = os.path.join(DEPLOY, "compose")


def need(tool):
    if not shutil.which(tool):
        pytest.skip(f"{tool} is not here")


def output(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()
    return done.stdout.decode()


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    need("dpkg-shlibdeps")
    binary = schema.require_binary()
    folder = str(tmp_path_factory.mktemp("package"))
    return output(os.path.join(DEPLOY, "package/build"), "--binary", os.path.dirname(os.path.abspath(binary)), "--output", folder).split()[0]


def test_the_package_has_the_program_its_service_and_its_pages(package, tmp_path):
    output("dpkg-deb", "-x", package, str(tmp_path))
    for path in ("usr/bin/onceward", "usr/lib/systemd/system/onceward@.service", "usr/share/man/man1/onceward.1.gz", "usr/share/doc/onceward/copyright",
                 "usr/share/bash-completion/completions/onceward", "usr/share/onceward/onceward.schema.json", "etc/onceward"):
        assert os.path.exists(tmp_path / path), path
    control = output("dpkg-deb", "-f", package)
    version = output(str(tmp_path / "usr/bin/onceward"), "version").split()[1]
    assert f"Version: {version}\n" in control and "libpq5" in control and "adduser" in control, control


def test_a_package_that_is_built_twice_is_the_same(package, tmp_path):
    again = output(os.path.join(DEPLOY, "package/build"), "--binary", os.path.dirname(os.path.abspath(schema.binary())), "--output", str(tmp_path)).split()[0]
    with open(package, "rb") as one, open(again, "rb") as other:
        assert one.read() == other.read()


def test_the_service_is_one_that_systemd_reads_and_finds_closed(tmp_path):
    need("systemd-analyze")
    with open(UNIT) as f:
        text = f.read().replace("/usr/bin/onceward", "/bin/true").replace("Documentation=man:onceward(1)\n", "")
    with open(tmp_path / "onceward@.service", "w") as f:
        f.write(text)
    assert output("systemd-analyze", "verify", "--man=no", f.name) == ""
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", output("systemd-analyze", "security", "--offline=true", f.name))[1]
    with open(os.path.join(DEPLOY, "package/README.md")) as f:
        assert f"`systemd-analyze security`: {exposure}" in f.read()


def compose():
    yaml = pytest.importorskip("yaml", reason="without python3-yaml it cannot be read")
    with open(os.path.join(COMPOSE, "compose.yaml")) as f:
        return yaml.safe_load(f)


def test_the_compose_file_fits_its_configuration():
    made = compose()
    with open(os.path.join(COMPOSE, "onceward.json")) as f:
        config = json.load(f)
    with open(os.path.join(COMPOSE, "roles.sql")) as f:
        roles = dict(re.findall(r"CREATE ROLE (\w+) LOGIN PASSWORD '([^']+)'", f.read()))
    urls = re.findall(r"postgresql://(\w+):([^@]+)@(\w+):5432/(\w+)", json.dumps([made, config]))
    assert len(urls) == 3 and all(roles[user] == password and host in made["services"] and name == "app" for user, password, host, name in urls)
    assert re.search(r"@(\w+):", config["broker"]["url"])[1] in made["services"]
    sidecar, application = made["services"]["onceward"], made["services"]["application"]
    assert f":{application['environment']['PORT']}/" in config["queues"]["payments"]["forward"]["url"]
    assert os.path.dirname(config["state_file"]) == sidecar["tmpfs"][0].split(":")[0]
    for service in made["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in made["volumes"] or os.path.exists(os.path.join(COMPOSE, source)), source


def test_the_configuration_of_the_compose_file_is_good():
    output(schema.require_binary(), "check", "--config", os.path.join(COMPOSE, "onceward.json"))


def test_the_broker_takes_the_definitions_of_the_compose_file(rabbitmq, tmp_path):
    with open(os.path.join(COMPOSE, "definitions.json")) as f:
        definitions = json.load(f)
    with open(os.path.join(COMPOSE, "onceward.json")) as f:
        assert [queue["name"] for queue in definitions["queues"]] == list(json.load(f)["queues"])
    name = definitions["queues"][0]["name"] = f"compose-{uuid.uuid4().hex[:8]}"
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(definitions))
    path.chmod(0o644)
    tmp_path.chmod(0o755)
    rabbitmq.rabbitmqctl("import_definitions", str(path))
    channel = rabbitmq.connect().channel()
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 20})  # refused if it differs
    channel.queue_delete(name)


def test_docker_compose_reads_the_file():
    need("docker-compose")
    made = output("docker-compose", "-f", os.path.join(COMPOSE, "compose.yaml"), "config")
    assert "network_mode: service:application" in made
