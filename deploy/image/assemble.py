"""Puts the file tree of the image together, and says what it consists of.

    assemble.py BINARY ROOT SBOM [--epoch SECONDS]

ROOT becomes: the binary; the libraries that it needs, and those that they need, with the program that loads them, from this Debian
machine's folders of the binary's own architecture; the CA bundle; passwd and group with one user, 65532; and the copyright file of every
package of which there is a file. No shell, nothing that can be run but the binary. SBOM: all of that as SPDX 2.3 in JSON, with the
checksums of the files and the packages that they come from, as dpkg knows them. It lies in the image, too.

Every time is EPOCH and every list is sorted, so the same machine makes the same tree twice."""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time

MACHINES = {"Advanced Micro Devices X86-64": ("amd64", "x86_64-linux-gnu"), "AArch64": ("arm64", "aarch64-linux-gnu")}
USER = 65532
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
OWN = "usr/share/doc/onceward/onceward.spdx.json"
WRITABLE = "run/onceward"  # a tmpfs that is mounted there takes its mode
WRITTEN = {
    "etc/passwd": f"onceward:x:{USER}:{USER}::/:/usr/bin/false\n",
    "etc/group": f"onceward:x:{USER}:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
# Where OpenSSL, which asks the broker's and the database's certificates, looks for authorities.
LINKS = {"lib": "usr/lib", "lib64": "usr/lib64", "bin": "usr/bin", "usr/lib/ssl/cert.pem": CA_BUNDLE}


def tool(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL).stdout.decode()


def merged(path):
    """As in the image, where /lib is /usr/lib."""
    return re.sub(r"^/(lib|lib64|bin)/", r"/usr/\1/", path)


class Elf:
    def __init__(self, path):
        text = tool("readelf", "--wide", "--file-header", "--dynamic", "--program-headers", path)
        machine = re.search(r"Machine:\s+(.+)", text)[1].strip()
        if machine not in MACHINES:
            sys.exit(f"{path}: there is no image for {machine}")
        self.architecture, self.triplet = MACHINES[machine]
        self.needed = re.findall(r"\(NEEDED\).*\[(.+)\]", text)
        self.loader = (re.findall(r"program interpreter: (.+)\]", text) or [None])[0]


def find_library(name, triplet):
    for folder in (f"/lib/{triplet}", f"/usr/lib/{triplet}", f"/usr/{triplet}/lib"):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return path
    sys.exit(f"{name} of {triplet} is not installed")


def closure(binary):
    """Of libraries: name in the image to file here. The loader is among them, by its full name."""
    elf = Elf(binary)
    found, todo = {}, list(elf.needed)
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found[name] = find_library(name, elf.triplet)
        todo += Elf(found[name]).needed
    loader = os.path.basename(elf.loader)
    found[loader] = find_library(loader, elf.triplet)
    return elf, found


def package_of(path):
    """The Debian package of a file, which may be listed under its name before /usr was merged."""
    for name in {path, os.path.realpath(path), re.sub("^/usr", "", os.path.realpath(path)), merged(path)}:
        answer = subprocess.run(["dpkg-query", "--search", name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
        if answer and not answer.startswith("diversion"):
            return answer.rsplit(": ", 1)[0].split(",")[0]
    sys.exit(f"{path} belongs to no package")


class Tree:
    def __init__(self, root):
        self.root, self.origin = root, {}

    def put(self, source, name, package):
        target = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(source, target)
        os.chmod(target, 0o755 if os.access(source, os.X_OK) else 0o644)
        self.origin[name] = package

    def write(self, name, text):
        target = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w") as f:
            f.write(text)
        os.chmod(target, 0o644)

    def link(self, name, to):
        os.makedirs(os.path.dirname(os.path.join(self.root, name)), exist_ok=True)
        os.symlink(to, os.path.join(self.root, name))

    def settle(self, epoch):
        """Modes and times do not depend on who made it, and when."""
        for folder, _, files in os.walk(self.root, topdown=False):
            for name in files:
                os.utime(os.path.join(folder, name), (epoch, epoch), follow_symlinks=False)
            os.chmod(folder, 0o1777 if os.path.relpath(folder, self.root) == WRITABLE else 0o755)
            os.utime(folder, (epoch, epoch))


def assemble(binary, root):
    elf, libraries = closure(binary)
    tree = Tree(root)
    for name, to in LINKS.items():
        tree.link(name, to)
    for folder in ("usr/bin", "usr/lib", "usr/lib64", "etc/onceward", WRITABLE, "proc", "dev", "sys", "tmp"):
        os.makedirs(os.path.join(root, folder), exist_ok=True)
    tree.put(binary, "usr/bin/onceward", None)
    os.chmod(os.path.join(root, "usr/bin/onceward"), 0o755)
    for name, path in sorted(libraries.items()):
        tree.put(path, f"usr/lib/{elf.triplet}/{name}", package_of(path))
    where = merged(elf.loader).lstrip("/")
    if not os.path.lexists(os.path.join(root, where)):
        library = f"usr/lib/{elf.triplet}/{os.path.basename(elf.loader)}"
        tree.link(where, os.path.relpath(library, os.path.dirname(where)))  # relative: it can also be followed in a folder, by qemu-user
    tree.put(CA_BUNDLE, CA_BUNDLE.lstrip("/"), "ca-certificates")
    for name, text in WRITTEN.items():
        tree.write(name, text)
    for package in sorted({p for p in tree.origin.values() if p}):
        short = package.split(":")[0]
        tree.put(os.path.realpath(f"/usr/share/doc/{short}/copyright"), f"usr/share/doc/{short}/copyright", package)
    return elf, tree


# The software bill of materials.

def checksums(path):
    with open(path, "rb") as f:
        data = f.read()
    return [{"algorithm": "SHA1", "checksumValue": hashlib.sha1(data).hexdigest()},
            {"algorithm": "SHA256", "checksumValue": hashlib.sha256(data).hexdigest()}]


def spdx_id(kind, name):
    return f"SPDXRef-{kind}-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def spdx_package(name, version, supplier, purl):
    return {"SPDXID": spdx_id("Package", name), "name": name, "versionInfo": version, "supplier": supplier,
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": "NOASSERTION",
            "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}]}


def sbom(tree, elf, version, epoch):
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    packages = [spdx_package("onceward", version, "Organization: Onceward", f"pkg:generic/onceward@{version}?arch={elf.architecture}")]
    for package in sorted({p for p in tree.origin.values() if p}):
        fields = tool("dpkg-query", "--show", "--showformat", "${Version}\t${Maintainer}\t${source:Package}\t${Architecture}", package)
        number, maintainer, source, architecture = fields.split("\t")
        short = package.split(":")[0]
        packages.append(spdx_package(short, number, f"Organization: {maintainer}",
                                     f"pkg:deb/debian/{short}@{number}?arch={architecture}&upstream={source}"))
    files, relations = [], [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                             "relatedSpdxElement": packages[0]["SPDXID"]}]
    for name in sorted(set(tree.origin) | set(WRITTEN)):
        files.append({"SPDXID": spdx_id("File", name), "fileName": "./" + name, "licenseConcluded": "NOASSERTION",
                      "licenseInfoInFiles": ["NOASSERTION"], "copyrightText": "NOASSERTION",
                      "checksums": checksums(os.path.join(tree.root, name))})
        owner = (tree.origin.get(name) or "onceward").split(":")[0]
        relations.append({"spdxElementId": spdx_id("Package", owner), "relationshipType": "CONTAINS",
                          "relatedSpdxElement": spdx_id("File", name)})
    for package in packages[1:]:
        relations.append({"spdxElementId": packages[0]["SPDXID"], "relationshipType": "DEPENDS_ON", "relatedSpdxElement": package["SPDXID"]})
    digest = hashlib.sha256(json.dumps([packages, files], sort_keys=True).encode()).hexdigest()
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"onceward-{version}-{elf.architecture}",
            "documentNamespace": f"https://onceward.dev/sbom/{version}/{elf.architecture}/{digest}",
            "creationInfo": {"created": made, "creators": ["Tool: onceward deploy/image/assemble.py"]},
            "packages": packages, "files": files, "relationships": relations}


def main():
    parser = argparse.ArgumentParser(description="Puts the file tree of the image together.")
    parser.add_argument("binary")
    parser.add_argument("root")
    parser.add_argument("sbom")
    parser.add_argument("--epoch", type=int, default=0)
    options = parser.parse_args()
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../meson.build")) as f:
        version = re.search(r"version: '(.+?)'", f.read())[1]
    if os.path.exists(options.root):
        sys.exit(f"{options.root} is there already")
    os.makedirs(options.root)
    elf, tree = assemble(options.binary, options.root)
    text = json.dumps(sbom(tree, elf, version, options.epoch), indent=1) + "\n"
    tree.write(OWN, text)
    with open(options.sbom, "w") as f:
        f.write(text)
    tree.settle(options.epoch)
    print(elf.architecture, version)


if __name__ == "__main__":
    main()
