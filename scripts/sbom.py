#!/usr/bin/env python3
"""Writes the software bill of materials of the binary and the image as CycloneDX 1.5 JSON.

    scripts/sbom.py TARGET [DPKG-LIST]

TARGET is the Rust target of the binary, such as x86_64-unknown-linux-gnu. The crates are those that are linked into the
binary of the image: the normal dependencies of the package `beeline` without default features for that target, with
licences from `cargo metadata` and checksums from Cargo.lock. DPKG-LIST adds the Debian packages of the image, one "NAME VERSION ARCHITECTURE" per line. The output has no
time and no random number, so the same sources give the same bytes.
"""
import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def metadata(target):
    command = ["cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={target}"]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def linked(graph, target):
    """The ids of the packages that are linked into the binary of the image, which is built without default features.

    `cargo metadata` resolves the features of the whole workspace, with its tests; `cargo tree` those of one package.
    """
    command = ["cargo", "tree", "--locked", "-p", "beeline", "--no-default-features", "--target", target]
    command += ["--edges=normal", "--prefix=none", "--no-dedupe", "--format={p}"]
    text = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    names = {(line.split()[0], line.split()[1].removeprefix("v")) for line in text.splitlines()}
    return {package["id"] for package in graph["packages"] if (package["name"], package["version"]) in names}


def checksums():
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {(package["name"], package["version"]): package.get("checksum") for package in lock["package"]}


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def crate(package, checksum):
    component = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
    }
    if package.get("license"):
        component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if checksum:
        component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return component


def debian(line):
    name, version, architecture = line.split()
    purl = f"pkg:deb/debian/{name}@{version}?arch={architecture}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def document(target, packages):
    graph = metadata(target)
    by_id = {package["id"]: package for package in graph["packages"]}
    [root] = [package["id"] for package in graph["packages"] if package["name"] == "beeline" and not package["source"]]
    found, sums = linked(graph, target), checksums()
    crates = [by_id[package] for package in found if package != root]
    crates.sort(key=lambda package: (package["name"], package["version"]))
    components = [crate(package, sums.get((package["name"], package["version"]))) for package in crates]
    nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
    edges = []
    for package in sorted(found, key=lambda package: reference(by_id[package])):
        depends = {reference(by_id[other["pkg"]]) for other in nodes[package]["deps"] if other["pkg"] in found}
        edges.append({"ref": reference(by_id[package]), "dependsOn": sorted(depends)})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": dict(crate(by_id[root], None), type="application")},
        "components": components + [debian(line) for line in packages],
        "dependencies": edges,
    }


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit("sbom: usage: scripts/sbom.py TARGET [DPKG-LIST]")
    packages = Path(sys.argv[2]).read_text().splitlines() if len(sys.argv) == 3 else []
    json.dump(document(sys.argv[1], packages), sys.stdout, indent=1)
    print()


main()
