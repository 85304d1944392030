"""Exercises with small services on the sandbox's own loopback: configure, start, use, stop."""

from __future__ import annotations

import random

from katgym_envs.terminal.exercise import Exercise, Skill
from katgym_envs.terminal.state.entries import Entry, File, Folder, Ini, Json
from katgym_envs.terminal.words import CITIES, NOUNS, PEOPLE

SKILL = Skill("services")
_SERVER = """\
import configparser, json, os, signal, socketserver, sys, threading

parser = configparser.ConfigParser()
parser.read("service.ini")
CONFIG = parser["service"]
PORT = CONFIG.getint("port")
{checks}

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            answer = reply(line.decode().rstrip("\\r\\n"))
            self.wfile.write((answer + "\\n").encode())
            if line.strip() == b"QUIT":
                return

{body}

class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


server = Server(("127.0.0.1", PORT), Handler)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
server.serve_forever()
server.server_close()
{end}
"""
_STORE = """\
DATA, COUNT = {}, [0]


def reply(line):
    words = line.split(" ", 2)
    if words[0] == "PUT" and len(words) == 3:
        COUNT[0] += 1
        DATA[words[1]] = words[2]
        return "OK"
    if words[0] == "DEL" and len(words) == 2:
        COUNT[0] += 1
        return "OK" if DATA.pop(words[1], None) is not None else "NONE"
    if words[0] == "GET" and len(words) == 2:
        return DATA.get(words[1], "NONE")
    return "BYE" if line == "QUIT" else "ERROR"
"""
_STORE_END = """\
with open("store.json", "w") as file:
    json.dump({"revision": COUNT[0], "data": DATA}, file)
"""
_SECRET = """\
def reply(line):
    words = line.split()
    if len(words) == 2 and words[0] == "GET" and words[1] in KNOWN:
        return " ".join(c * 2 for c in KNOWN[words[1]])
    return "BYE" if line == "QUIT" else "ERROR"
"""


def _talk(port: int, *commands: str) -> str:
    """Return shell lines that start the service, say commands, print answers, and stop it."""
    said = "\\n".join([*commands, "QUIT"])
    return (
        "python3 service.py & pid=$!\n"
        f"until {{ exec 3<>/dev/tcp/127.0.0.1/{port}; }} 2>/dev/null; do sleep 0.03; done\n"
        f"printf '{said}\\n' >&3\nanswers=$(cat <&3)\nexec 3>&-\nkill -TERM $pid\nwait $pid\n"
    )


def _server(*, body: str, checks: str = "", end: str = "") -> File:
    text = _SERVER.replace("{checks}", checks).replace("{body}", body).replace("{end}", end)
    return File(text)


def _port(rng: random.Random) -> int:
    return rng.randint(20_000, 29_999)


@SKILL.template
def fill_store(rng: random.Random) -> Exercise:
    port, keys = _port(rng), rng.sample(NOUNS, rng.randint(3, 6))
    pairs = {key: f"{rng.choice(CITIES)} {rng.randint(1, 99)}" for key in keys}
    gone = keys[0]
    asked = ", ".join(f"{key} = `{value}`" for key, value in pairs.items())
    left = {key: value for key, value in pairs.items() if key != gone}
    commands = [f"PUT {key} {value}" for key, value in pairs.items()]
    config = {"port": str(_port(rng)), "name": rng.choice(NOUNS)}
    return Exercise(
        prompt="`python3 service.py` serves a store on the port of service.ini; it takes lines `PUT"
        " KEY VALUE`, `GET KEY`, `DEL KEY`, `QUIT`, and writes store.json on SIGTERM. Change its"
        f" port to {port}, start it, put {asked}, then delete {gone}, with nothing more that"
        " changes the store, and stop it by SIGTERM.",
        before={
            "service.py": _server(body=_STORE, end=_STORE_END),
            "service.ini": Ini({"service": config}),
        },
        changes={
            "service.ini": Ini({"service": {**config, "port": str(port)}}),
            "store.json": Json({"revision": len(pairs) + 1, "data": left}),
        },
        script=f"sed -i 's/^port = .*/port = {port}/' service.ini\n"
        + _talk(port, *commands, f"DEL {gone}"),
    )


@SKILL.template
def ask_service(rng: random.Random) -> Exercise:
    port = _port(rng)
    known = {name: f"{rng.choice(CITIES)}{rng.randint(10, 99)}" for name in rng.sample(PEOPLE, 6)}
    asked = sorted(rng.sample(sorted(known), 3))
    before: dict[str, Entry] = {
        "service.py": _server(body=f"KNOWN = {known!r}\n\n\n{_SECRET}"),
        "service.ini": Ini({"service": {"port": str(port)}}),
    }
    return Exercise(
        prompt="`python3 service.py` listens on the port of service.ini and answers `GET NAME`"
        f" lines; QUIT ends a connection. Write its answers about {', '.join(asked)} to"
        " answers.txt, as lines `NAME: ANSWER` in this order, and leave the service stopped.",
        before=before,
        changes={
            "answers.txt": File(
                "".join(f"{name}: {' '.join(c * 2 for c in known[name])}\n" for name in asked)
            )
        },
        script=_talk(port, *(f"GET {name}" for name in asked))
        + f"paste -d' ' <(printf '%s:\\n' {' '.join(asked)}) <(head -n 3 <<< \"$answers\")"
        " > answers.txt",
    )


@SKILL.template
def repair_start(rng: random.Random) -> Exercise:
    port, folder = _port(rng), f"{rng.choice(NOUNS)}-data"
    workers, most = rng.randint(2, 8), rng.randint(9, 12)
    wrong = {"port": str(port), "workers": str(most + rng.randint(1, 9)), "name": rng.choice(NOUNS)}
    checks = (
        f'if not 1 <= CONFIG.getint("workers") <= {most}:\n'
        f'    sys.exit("workers is from 1 to {most}")\n'
        'if not os.path.isdir(CONFIG.get("data", "")):\n'
        '    sys.exit("data has to name a directory")\n'
    )
    end = (
        'with open(os.path.join(CONFIG["data"], "started.json"), "w") as file:\n'
        f'    slots = CONFIG.getint("workers") * {port}\n'
        '    json.dump({"name": CONFIG["name"], "slots": slots}, file)'
    )
    right = {**wrong, "workers": str(workers), "data": folder}
    return Exercise(
        prompt="`python3 service.py` does not start. Give service.ini, section service,"
        f" {workers} workers and the data directory {folder} (make it), start the service, and"
        " stop it by SIGTERM once it listens on its port: it then leaves started.json in the"
        " directory.",
        before={
            "service.py": _server(body=_STORE, checks=checks, end=end),
            "service.ini": Ini({"service": wrong}),
        },
        changes={
            "service.ini": Ini({"service": right}),
            folder: Folder(),
            f"{folder}/started.json": Json({"name": wrong["name"], "slots": workers * port}),
        },
        script=f"mkdir {folder}\nsed -i 's/^workers = .*/workers = {workers}\\ndata = {folder}/'"
        f" service.ini\n{_talk(port)}",
    )


@SKILL.template
def move_store(rng: random.Random) -> Exercise:
    port = _port(rng)
    data = {key: f"{rng.choice(CITIES)} {rng.randint(100, 999)}" for key in rng.sample(NOUNS, 8)}
    prefix = rng.choice(NOUNS)
    text = "".join(f"{key}={value}\n" for key, value in data.items())
    kept = {f"{prefix}.{key}": value for key, value in data.items() if int(value[-3:]) % 2 == 0}
    return Exercise(
        prompt="`python3 service.py` serves an empty store on the port of service.ini; it takes"
        " lines `PUT KEY VALUE`, `GET KEY`, `QUIT`, and writes store.json on SIGTERM. Start it,"
        " put each line `KEY=VALUE` of import.txt whose number is even into it under the key"
        f" {prefix}.KEY, each once, and stop it by SIGTERM.",
        before={
            "service.py": _server(body=_STORE, end=_STORE_END),
            "service.ini": Ini({"service": {"port": str(port)}}),
            "import.txt": File(text),
        },
        changes={"store.json": Json({"revision": len(kept), "data": kept})},
        script=_talk(port, *(f"PUT {key} {value}" for key, value in kept.items())),
    )
