"""Translates what the API says in whole English sentences: details of errors, and what a job is doing.

A sentence is recognised by its words. `./dev words` gathers those of errors into `details.json`.
"""

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from simpletuner_fleet.core.marks import N_
from simpletuner_fleet.languages.choosing import ENGLISH
from simpletuner_fleet.languages.words import Words

OF_JOBS = (
    N_("attempt %(number)s, resumed from step %(step)s on %(worker)s"),
    N_("cancelling: saving a checkpoint first"),
    N_("cancelling: the checkpoint of step %(step)s is stored, stopping the trainer"),
    N_("cancelling: stopping the trainer"),
    N_("leaving its worker: saving a checkpoint first"),
    N_("leaving its worker: the checkpoint of step %(step)s is stored, stopping the trainer"),
    N_("leaving its worker: stopping the trainer"),
    N_("near its cost limit: saving a checkpoint first"),
    N_("near its cost limit: the checkpoint of step %(step)s is stored, stopping the trainer"),
    N_("near its cost limit: stopping the trainer"),
)
OF_ENDS = (
    N_("the trainer ended with exit code %(code)s"),
    N_("the trainer was ended by signal %(signal)s"),
    N_("the trainer exited with code %(code)s"),
    N_("the trainer was killed by signal %(signal)s"),
    N_("the trainer failed"),
    N_("the trainer and its supervisor were killed"),
    N_("the trainer's supervisor was killed"),
    N_("the job reached the memory limit of its worker, %(gb)s GB (--job-memory-gb)"),
    N_("the job reached the process limit of its worker, %(count)s processes and threads (--job-pids)"),
    N_("the time limit of %(seconds)s s was reached"),
    N_("the time limit was reached"),
    N_("the cost limit of %(allowed)s would have been passed; %(spent)s was spent"),
    N_("its job was about to pass its cost limit"),
    N_("the worker agent died"),
    N_("the worker agent died while it stopped the trainer"),
    N_("the worker came back without its trainer"),
    N_("the worker did not accept the offer in time"),
    N_("the worker is draining"),
    N_("its machine is about to be taken away"),
    N_("its machine is being taken away"),
    N_("its machine is being taken away (%(source)s)"),
    N_("the worker disconnected cleanly"),
    N_("the worker stopped before the job started"),
    N_("the worker was asked to stop"),
    N_("the worker was cut off for longer than its lease"),
    N_("the worker was cut off from the orchestrator"),
    N_("the worker was drained"),
    N_("the checkpoint to resume from could not be downloaded"),
    N_("no heartbeat for %(seconds)s s"),
    N_("its worker has not reported it for %(seconds)s s"),
    N_("it depends on %(job)s, which ended as %(state)s"),
    N_("nobody approved it in time"),
    N_("rejected by %(who)s"),
    N_("rejected by %(who)s: %(why)s"),
)
"""How attempts end, as workers and the orchestrator write it down; what a trainer itself says stays as it is."""

OF_CHECKS = (
    N_("SimpleTuner %(version)s has no option '%(name)s'."),
    N_("SimpleTuner %(version)s expects '%(name)s' to be at least %(least)s, not %(value)s."),
    N_("SimpleTuner %(version)s expects '%(name)s' to be at most %(most)s, not %(value)s."),
    N_("SimpleTuner %(version)s needs '%(name)s'."),
    N_("'%(name)s' must be a whole number, not %(value)s."),
    N_("'%(name)s' must be a number, not %(value)s."),
    N_("'%(name)s' must be true or false, not %(value)s."),
    N_("'%(name)s' must be one of %(choices)s, not %(value)s."),
    N_("'%(name)s' is set twice: as %(first)s and as %(second)s."),
    N_("Did you mean '%(name)s'?"),
    N_("No worker has a trainer '%(name)s'."),
    N_("There are %(known)s."),
    N_("The demo trainer has no setting '%(name)s': it is ignored."),
    N_("The trainer '%(trainer)s' has no setting '%(name)s': only the program can read it, from its config."),
    N_("lora_type 'lycoris' needs a lycoris_config."),
    N_("push_to_hub needs the worker's own Hugging Face Hub login, or a secret HF_TOKEN."),
    N_("These are the first %(count)s findings; what follows was not checked."),
)
"""What is found in a config that is checked against its trainer's options."""

OF_DELIVERIES = (
    N_("HTTP %(status)s: it redirects, which is not followed. Set the final address."),
    N_("No answer within %(seconds)s s."),
    N_("It gave no answer that is HTTP: %(error)s."),
    N_("Its address is not a URL."),
    N_("Its certificate is not trusted: %(reason)s."),
    N_("No connection: %(reason)s."),
    N_("it does not say why"),
    N_("it ends with status %(status)s"),
    N_("Its name cannot be resolved."),
    N_("Its address lies in a private network; the server's owner may allow that with --notify-network."),
    N_("Without TLS only networks named by --notify-network are called."),
    N_("The mail server cannot be reached: %(reason)s."),
    N_("The mail server's TLS failed: %(reason)s."),
    N_("The mail server did not answer within %(seconds)s s."),
    N_("The mail server broke off: %(error)s."),
    N_("The mail server refused: %(code)s"),
    N_("The mail server spoke out of turn before TLS began."),
    N_("The mail server takes no password by PLAIN or LOGIN."),
    N_("A password is never sent without TLS: name the mail server as smtp:// or smtps://."),
    N_("This server has no mail server: its owner sets one with --smtp-url."),
    N_("This server has no Apprise: its owner installs it with pip install 'simpletuner-fleet[apprise]'."),
    N_("Services are called with TLS alone."),
    N_("Its answer is too long."),
    N_("The service answered, and did not take the message."),
    N_("No message can be written for this address."),
    N_("the mail server has taken it"),
    N_("It did not take the entries within %(seconds)s s."),
    N_("It broke off: %(error)s."),
    N_("sent"),
    N_("its owner may not see this any more"),
    N_("its address or secret cannot be opened: the server's key for secrets is another one"),
    N_("the server was restored from a backup: look whether it is still wanted"),
    N_("paused by %(name)s"),
)
"""What came of telling somebody, as the history of an endpoint has it."""

OF_PROVIDERS = (
    N_("the provider answered %(status)s: %(words)s"),
    N_("the provider answered %(status)s"),
    N_("the provider refuses the key (status %(status)s) %(words)s"),
    N_("the provider refuses the key (status %(status)s)"),
    N_("the provider cannot be reached: %(why)s"),
    N_("no answer from the provider in %(seconds)s s"),
    N_("the provider asked for fewer calls; the next one is in %(seconds)s s"),
    N_("the provider's answer is not what it promises: %(why)s"),
    N_("the provider's answer is too large, and was not read"),
    N_("the provider's answer is compressed, and was not read"),
    N_("the secret with the provider's key cannot be read"),
    N_("no answer in time"),
    N_("%(program)s cannot be started: %(why)s"),
    N_("%(who)s did not answer in %(seconds)s s"),
    N_("Kubernetes said %(words)s Its token or certificate is not accepted: store a new one."),
    N_("Kubernetes said %(words)s Its role does not allow that, or a quota is used up."),
    N_("Kubernetes said %(words)s"),
    N_("Kubernetes answered with %(words)s"),
    N_("Kubernetes could not be asked: %(why)s"),
    N_("its Secret could not be made: %(why)s"),
    N_(
        "%(host)s has no program %(program)s: install it there, or say with the setting 'install' what pip shall install"
    ),
    N_("%(host)s is taken: %(machine)s is there"),
    N_("%(host)s is no host of the pool any more"),
    N_("RunPod's spot prices cannot be had: %(why)s"),
    N_("Vast.ai takes no bid of %(bid)s dollars an hour"),
)
"""Why a provider of machines made none, or could not be asked; its own words stay as they are."""
OF_SIGN_IN = (
    N_("It describes itself at the well-known address."),
    N_("The provider calls itself exactly what stands here."),
    N_("The addresses for log-ins, tokens and keys are safe, and this server may ask them."),
    N_("It signs in a way that can be trusted."),
    N_("It supports PKCE with S256."),
    N_("The provider does not say whether it supports PKCE with S256."),
    N_("It is sent with every log-in; look into the provider's own documentation."),
    N_("The provider does not say which scopes it knows."),
    N_("Whether groups come is seen at the first log-in."),
    N_("The provider does not know the scopes %(scopes)s."),
    N_("Leave them out, or add them at the provider."),
    N_("It knows every scope that is asked for."),
    N_("Keys that it publishes: %(count)s. None fits the ways in which it signs."),
    N_("The provider must publish a key for %(signatures)s."),
    N_("%(count)s of its keys can be used."),
    N_("It knows this client, and leads people back to this address."),
    N_("It refuses to begin a log-in: it answers %(status)s."),
    N_("Register this address at the provider as a redirect address of this client, to the letter."),
    N_("Whether it leads people back to this address cannot be told without logging in."),
    N_("The address for log-ins lies at a host that this server does not ask."),
    N_("Register the address at the provider, then log in once."),
    N_("It accepts the client id and the secret."),
    N_("It does not accept the client id and the secret."),
    N_("Copy both from the provider again."),
    N_("It answers %(status)s, which does not say whether it accepts the client id and the secret."),
    N_("Log in once."),
    N_("Not looked at, because an earlier check failed."),
    N_("Mend that first, then test again."),
    N_("Look at the provider and at the address, then test again."),
    N_("The server's own file has a provider of this name or issuer, which is used instead."),
    N_("Its secret cannot be opened: the server's key for secrets is another one."),
)
"""What came of the test of a provider, and why one that was added is not used."""

SENTENCES = Path(__file__).parent / "details.json"
BLANK = re.compile(r"%\((\w+)\)s")
MAX_CHARS = 500
MOST_WAYS = 1_000


def detail_text(words: Words, english: str) -> str:
    """Translates the sentence where it is one of ours; otherwise returns it as it is."""
    if words.lang == ENGLISH or not english:
        return english
    translated = words.gettext(english.replace("%", "%%"))
    if translated != english.replace("%", "%%"):
        return translated.replace("%%", "%")
    if len(english) <= MAX_CHARS:
        for sentence in _sentences():
            if match := sentence.match(english):
                return words.text(sentence.text, **match.groupdict())
    return english


class Sentence(NamedTuple):
    """A sentence of ours with blanks in it."""

    text: str
    parts: tuple[str, ...]
    """Its own words, before, between and after the blanks."""
    pattern: re.Pattern[str]

    def match(self, english: str) -> re.Match[str] | None:
        """Returns how the blanks are filled; None where it is another sentence, or fits in more ways than ours ever do.

        A stranger's text that is nothing but our words again and again would take seconds to be told apart.
        """
        begin, *between, end = self.parts
        if not english.startswith(begin) or not english.endswith(end):
            return None
        ways = math.prod(english.count(part) for part in between)
        return self.pattern.fullmatch(english) if 0 < ways <= MOST_WAYS else None


@cache
def _sentences() -> tuple[Sentence, ...]:
    """Returns the sentences with blanks, those with the most text of their own first."""
    ours = (*OF_JOBS, *OF_ENDS, *OF_CHECKS, *OF_DELIVERIES, *OF_PROVIDERS, *OF_SIGN_IN)
    texts = (*ours, *json.loads(SENTENCES.read_text("utf-8")))
    sentences = [text for text in texts if BLANK.search(text)]
    sentences.sort(key=lambda text: -len(BLANK.sub("", text)))
    return tuple(_sentence(text) for text in sentences)


def _sentence(text: str) -> Sentence:
    pieces = BLANK.split(text)
    parts = tuple(part.replace("%%", "%") for part in pieces[::2])
    blanks: set[str] = set()
    pattern = re.escape(parts[0])
    for blank, part in zip(pieces[1::2], parts[1:], strict=True):
        pattern += f"(?P={blank})" if blank in blanks else f"(?P<{blank}>.*?)"
        pattern += re.escape(part)
        blanks.add(blank)
    return Sentence(text, parts, re.compile(pattern, re.DOTALL))
