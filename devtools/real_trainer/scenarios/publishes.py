"""The Hub's own client and ours bring the same files to the same small Hub: it holds the same, by the same questions.

No account at the real Hub is at hand: what is compared is the protocol, with the client that the release comes with.
"""

import asyncio
import hashlib
import json
import os
import subprocess
from pathlib import Path

import httpx2

from devtools.real_trainer.stage import Stage
from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.core.publishing import Publish
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.storage.publish.content import PublishedContent
from simpletuner_fleet.storage.publish.hub import Hub
from tests.hub_server import TOKEN, HubServer

FILES = {
    "pytorch_lora_weights.safetensors": bytes(range(256)) * 400,
    "small.safetensors": b"less than one part",
    "empty.safetensors": b"",
    "assets/sample.txt": b"x" * 2000,
    "README.md": b"# a model",
}
UPLOAD = """
import sys
import huggingface_hub
api = huggingface_hub.HfApi()
api.create_repo(sys.argv[2], private=True, exist_ok=True)
api.create_branch(sys.argv[2], branch="night", exist_ok=True)
api.upload_folder(repo_id=sys.argv[2], folder_path=sys.argv[1], revision="night", commit_message="by the real one")
print(huggingface_hub.__version__)
"""


def run(stage: Stage) -> list[str]:
    folder = stage.folder / "files"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    theirs, ours = HubServer(), HubServer()
    try:
        version = _by_their_client(stage, folder, theirs)
        asyncio.run(_by_our_client(stage.folder, ours))
        asked = [_questions(theirs), _questions(ours)]
        assert theirs.repositories == ours.repositories == {"lab/cats": FILES}, (
            theirs.repositories.keys(),
            asked,
        )
        assert theirs.private == ours.private == {"lab/cats": True}
        assert theirs.branches == ours.branches
        assert asked[1] <= asked[0], f"we ask what their client does not: {sorted(asked[1] - asked[0])}"
    finally:
        theirs.close()
        ours.close()
    return [
        f"huggingface_hub {version} and ours: the same {len(FILES)} files, by the same {len(asked[1])} questions"
    ]


def _by_their_client(stage: Stage, folder: Path, hub: HubServer) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(stage.folder),
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
    }
    done = subprocess.run(
        [str(stage.python), "-c", UPLOAD, str(folder), "lab/cats"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()[-1]


async def _by_our_client(folder: Path, hub: HubServer) -> None:
    blobs = FolderBlobs(folder / "blobs")
    entries = []
    for name, content in FILES.items():
        digest = hashlib.sha256(content).hexdigest()
        await blobs.put_part(name, 0, content)
        assert not content or await blobs.seal(name, digest, len(content))
        entries.append(FileEntry(path=name, sha256=digest, size=len(content)))
    publish = Publish(to="hf://lab/cats", secret="hub", branch="night")
    async with httpx2.AsyncClient() as http:
        published = PublishedContent(blobs, tuple(entries))
        await Hub(http, TOKEN, hub.url).publish(publish, "lab", "cats", published, "by ours")


def _questions(hub: HubServer) -> set[str]:
    """Without the digests, which say which file it was."""
    digests = {hashlib.sha256(content).hexdigest(): name for name, content in FILES.items()}
    said = json.dumps(sorted(hub.asked))
    for digest, name in digests.items():
        said = said.replace(digest, name)
    return set(json.loads(said))
