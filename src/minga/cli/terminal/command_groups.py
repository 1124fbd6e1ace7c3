"""In which group of `minga --help` each command stands, and an example of each."""

from __future__ import annotations

from typing import Final

import typer

GROUPS: Final[dict[str, dict[str, str]]] = {
    "Take part": {
        "demo": "minga demo --minutes 1",
        "join": "minga join LINK --max-upload 10Mbit",
        "status": "minga status LINK --watch",
        "dashboard": "minga dashboard LINK",
        "doctor": "minga doctor LINK",
        "export": "minga export LINK --out my-model",
        "evaluate": "minga evaluate my-model --task ncc",
        "sample": 'minga sample LINK "In the beginning" --n 3 --top-k 40',
        "notebook": "minga notebook LINK",
        "runs": "minga runs --remove 5ff8c8e8",
        "version": "minga version --json",
        "receipts": "minga receipts export FOLDER --out receipts.bin",
        "split": "minga split join LINK --data mine.csv",
    },
    "Organise": {
        "recipes": "minga recipes",
        "new": "minga new causal-lm --size small",
        "host": "minga host run.toml --port 4433 --announce 203.0.113.7:4433",
        "admit": "minga admit LINK --uses 5 --valid 7d",
        "members": "minga members LINK",
        "ban": "minga ban LINK PEER",
        "amend": "minga amend LINK optimizer.learning_rate=0.001",
        "pause": "minga pause LINK",
        "resume": "minga resume LINK",
        "stop": "minga stop LINK",
        "authority": "minga authority INVITATION --allow allow.toml --url https://login.example.org",
        "evidence": "minga evidence FOLDER",
        "backup": "minga backup FOLDER --out my-run.backup",
        "restore": "minga restore my-run.backup",
    },
    "Plan and simulate": {
        "plan": 'minga plan --model albert-large --peers "20x(t4, up=50Mbit, down=200Mbit)"',
        "bench-device": "minga bench-device --model albert-large",
        "sim": "minga sim home-150 --set peers.home.count=20",
        "replay": "minga replay run.log --step 7",
    },
}
"""The commands of each group, in their order, with an example."""


def arrange(app: typer.Typer) -> None:
    """Let `app` show its commands in these groups and this order, each with its example below its help; commands that
    have commands of their own come last.
    """
    places = {name: (group, example) for group, named in GROUPS.items() for name, example in named.items()}
    commands = {_name_of(info): info for info in app.registered_commands}
    shown: dict[str, typer.models.CommandInfo | typer.models.TyperInfo] = {**commands}
    for group in app.registered_groups:  # they are named where they are made
        if group.typer_instance is not None:
            shown[str(group.typer_instance.info.name)] = group
    for name, info in shown.items():
        if name in places:
            info.rich_help_panel, example = places[name]
            info.epilog = f"Example: {example}"
    ordered = [commands[name] for name in places if name in commands]
    app.registered_commands[:] = ordered + [info for name, info in commands.items() if name not in places]


def _name_of(info: typer.models.CommandInfo) -> str:
    return info.name or str(getattr(info.callback, "__name__", "")).replace("_", "-")
