"""Packs the real SimpleTuner for a GPU machine without a network: `.venv/bin/python gpu/pack_trainer.py ARCHIVE`.

The machine has torch, accelerate and transformers. Everything else that a training of SDXL loads goes into the archive, with
what the fleet itself needs, as wheels for x86_64 and Python 3.12. Parts that such a training never opens are left out
(`LEFT_OUT`), or the archive would be three times as large.
"""

import argparse
import fnmatch
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".dev" / "tools" / "bin" / "uv"
RELEASE = "4.10.1"
TORCH = ("torch==2.13.0", "torchvision==0.28.0")
"""Only so that the versions of the others are found; the machine's own torch is used."""
FLEET = """
    cffi cryptography h11 httpcore2 httptools httpx2 idna jinja2 markdown-it-py mdurl msgspec nvidia-ml-py prometheus-client
    pycparser rich shtab truststore uvloop
"""
LOADED = """
    annotated-doc annotated-types anyio atomicwrites beautifulsoup4 boto3 botocore certifi cffi charset-normalizer
    click cloudpickle colorama diffusers dill einops email-validator fastapi ftfy googleapis-common-protos h11
    hangul-romanize httpcore httpcore2 httpx httpx2 idna imageio jinja2 jmespath kernels kernels-data lazy-loader
    librosa lightning-utilities loguru lycoris-lora markupsafe num2words opentelemetry-api
    opentelemetry-exporter-http-transport opentelemetry-exporter-otlp-common opentelemetry-exporter-otlp-proto-common
    opentelemetry-exporter-otlp-proto-http opentelemetry-proto opentelemetry-sdk opentelemetry-semantic-conventions
    optimum-quanto pandas peft peft-singlora platformdirs protobuf py3langid pydantic pydantic-core
    pydantic-extra-types pygments pyparsing pypinyin python-dateutil python-multipart requests rich s3transfer sdnq
    shellingham simpletuner six skrample sniffio soundfile soupsieve soxr starlette threadpoolctl toml tomlkit
    torch-optimi torchsde tqdm trainingsample trampoline truststore typer typing-extensions typing-inspection urllib3
    wandb wcwidth wrapt xxhash
"""
"""What a training of SDXL was seen to load, without what comes with torch and transformers and is on the machine."""
FROM_SOURCE = "atomicwrites"
LEFT_OUT = (
    *("*/tests/*", "*.pyx", "*.pxd", "*.c", "*.cpp", "*.h", "*/__pycache__/*"),
    *("bin/*", "botocore/data/*/*", "wandb/bin/*"),
)
LYRICS = {"ar": "Arabic", "en": "English", "es": "Spanish", "ja": "Japanese", "zh": "Chinese"}
"""What is imported of spaCy for the lyrics of another model, and never used: these stand for its 40 MiB."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--platform", default="x86_64-manylinux_2_39")
    args = parser.parse_args()
    args.archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "packages"
        install(pins(args.platform), args.platform, target)
        stand_in_for_spacy(target)
        with tarfile.open(args.archive, "w:xz", preset=6) as archive:
            for path in sorted(path for path in target.rglob("*") if path.is_file()):
                name = str(path.relative_to(target))
                if not left_out(name):
                    archive.add(path, f"packages/{name}")
    print(f"{args.archive}: {args.archive.stat().st_size / 2**20:.1f} MiB")
    return 0


def pins(platform: str) -> list[str]:
    """The versions that go together, of those that are to be carried."""
    wanted = [f"simpletuner=={RELEASE}", *TORCH, *FLEET.split()]
    command = [str(UV), "pip", "compile", "-q", "--no-header", "--no-annotate", "-"]
    command += ["--python-platform", platform, "--python-version", "3.12"]
    resolved = subprocess.run(command, input="\n".join(wanted), capture_output=True, text=True, check=True)
    carried = {*FLEET.split(), *LOADED.split()}
    lines = [line.partition(";")[0].strip() for line in resolved.stdout.splitlines()]
    return [line for line in lines if line.partition("==")[0] in carried]


def install(packages: list[str], platform: str, target: Path) -> None:
    command = [
        str(UV),
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(target),
        "--python",
        sys.executable,
    ]
    command += ["--python-platform", platform, "--python-version", "3.12"]
    command += ["--only-binary", ":all:", "--no-binary", FROM_SOURCE, *packages]
    subprocess.run(command, check=True)


def stand_in_for_spacy(target: Path) -> None:
    folder = target / "spacy" / "lang"
    folder.mkdir(parents=True)
    for module in (target / "spacy" / "__init__.py", folder / "__init__.py"):
        module.touch()
    for module_name, language in LYRICS.items():
        (folder / f"{module_name}.py").write_text(f"class {language}:\n    pass\n")


def left_out(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in LEFT_OUT)


if __name__ == "__main__":
    sys.exit(main())
