"""Defines every statement by name, with `:name` parameters. Both databases run the same text."""

from simpletuner_fleet.core.jobs.states import LIVE, WAITING, JobState
from simpletuner_fleet.store.rows.audit import AUDIT_COLUMNS
from simpletuner_fleet.store.rows.jobs import ATTEMPTS as ATTEMPT_ROWS
from simpletuner_fleet.store.rows.jobs import JOBS as JOB_ROWS
from simpletuner_fleet.store.rows.uploads import MANIFEST_COLUMNS, NOTE_COLUMNS
from simpletuner_fleet.store.rows.workers import WORKERS as WORKER_ROWS


def _insert(table: str, columns: tuple[str, ...]) -> str:
    values = ", ".join(f":{column}" for column in columns)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})"


def listed(states: tuple[JobState, ...]) -> str:
    return ", ".join(f"'{state}'" for state in states)


def _set(columns: tuple[str, ...]) -> str:
    return ", ".join(f"{column} = :{column}" for column in columns)


_JOB = f"SELECT {', '.join(JOB_ROWS.columns)} FROM jobs"
_ATTEMPT = f"SELECT {', '.join(ATTEMPT_ROWS.columns)} FROM attempts"
_WORKER = f"SELECT {', '.join(WORKER_ROWS.columns)} FROM workers"
_CONFIG_COLUMNS = (
    "name",
    "version",
    "bundle",
    "created_at",
    "created_by",
    "owner",
    "team",
    "visibility",
)
_CONFIG = f"SELECT {', '.join(_CONFIG_COLUMNS)} FROM configs"
_TOKEN_COLUMNS = (
    "name",
    "token_hash",
    "permissions",
    "created_at",
    "expires_at",
    "revoked_at",
    "last_used_at",
    "owner",
)
_TOKEN = f"SELECT id, {', '.join(_TOKEN_COLUMNS)} FROM api_tokens"
_USER_COLUMNS = (
    "id",
    "name",
    "role",
    "created_at",
    "password_hash",
    "language",
    "disabled_at",
    "last_login_at",
    "issuer",
    "subject",
    "shut_out",
)
_SESSION_COLUMNS = ("token_hash", "user_id", "created_at", "seen_at", "ip", "issuer", "sid", "id_token")
_USER = f"SELECT {', '.join(_USER_COLUMNS)} FROM users"
_SESSION = f"SELECT {', '.join(_SESSION_COLUMNS)} FROM sessions"
_ENTRY = f"SELECT {', '.join(AUDIT_COLUMNS)} FROM audit"
_MANIFEST = f"SELECT {', '.join(MANIFEST_COLUMNS)} FROM manifests"

# Partial indexes serve a query only where it repeats their condition word for word.
_BACKING_OFF = "state = 'queued' AND not_before IS NOT NULL"
_LIVE = "state <> 'ended'"

JOB = f"{_JOB} WHERE id = :id"
JOB_BUNDLE = "SELECT bundle FROM job_bundles WHERE job_id = :id"
JOBS_SORTED = f"{_JOB} WHERE {{conditions}} ORDER BY {{order}} LIMIT :limit"
JOBS_MATCHING = "SELECT state, count(*) FROM jobs WHERE {conditions} GROUP BY state"
SOME_MATCHING = (
    "SELECT state, count(*) FROM (SELECT state FROM jobs WHERE {conditions} LIMIT :limit) AS fitting"
    " GROUP BY state"
)
JOB_TITLES = "SELECT id, coalesce(nullif(name, ''), config_name) FROM jobs WHERE id IN ({ids}){seen}"
WAITS = f"state IN ({listed(WAITING)})"
WAITING_GROUP = "(class_id || ' ' || hold || ' ' || refused_by)"
WAITING_GROUPS = (
    f"SELECT {WAITING_GROUP}, count(*), min(id), min(created_at) FROM jobs"
    f" WHERE {WAITS} AND state <> '' AND {{conditions}} GROUP BY class_id, hold, refused_by"
    " ORDER BY count(*) DESC, min(id) LIMIT :limit"
)
QUEUE_START = f"{_JOB} WHERE state = 'queued'{{seen}} ORDER BY rank, seq LIMIT :limit"
# Two looks, since SQLite would walk all of one rank to find the place of a (rank, seq) pair in it.
QUEUE_REST_OF_RANK = (
    f"{_JOB} WHERE state = 'queued' AND rank = :rank AND seq > :seq{{seen}} ORDER BY seq LIMIT :limit"
)
QUEUE_LATER_RANKS = f"{_JOB} WHERE state = 'queued' AND rank > :rank{{seen}} ORDER BY rank, seq LIMIT :limit"
QUEUED_AHEAD = (
    "SELECT (SELECT count(*) FROM jobs WHERE state = 'queued' AND rank < :rank)"
    " + (SELECT count(*) FROM jobs WHERE state = 'queued' AND rank = :rank AND seq < :seq)"
)
# Ranges of one column each, for the same reason as above.
QUEUED_WITHIN_RANK = (
    "SELECT count(*) FROM jobs WHERE state = 'queued' AND rank = :rank AND seq >= :since_seq AND seq < :seq"
)
QUEUED_BETWEEN_RANKS = (
    "SELECT (SELECT count(*) FROM jobs WHERE state = 'queued' AND rank = :since_rank AND seq >= :since_seq)"
    " + (SELECT count(*) FROM jobs WHERE state = 'queued' AND rank > :since_rank AND rank < :rank)"
    " + (SELECT count(*) FROM jobs WHERE state = 'queued' AND rank = :rank AND seq < :seq)"
)
_NOT_OVER = f"state IN ({listed(LIVE)}) AND state <> ''"
LIVE_JOBS = f"{_JOB} WHERE {_NOT_OVER} ORDER BY seq"
DUE_BACKOFFS = f"{_JOB} WHERE {_BACKING_OFF} AND not_before <= :now ORDER BY not_before, seq LIMIT :limit"
NEXT_BACKOFF = f"SELECT min(not_before) FROM jobs WHERE {_BACKING_OFF}"
DEPENDENTS = (
    f"{_JOB} WHERE state = 'blocked' AND seq > :after AND id IN (SELECT job_id FROM job_dependencies WHERE needs = :id)"
    " ORDER BY seq LIMIT :limit"
)

ATTEMPT = f"{_ATTEMPT} WHERE id = :id"
ATTEMPT_BY_EPOCH = f"{_ATTEMPT} WHERE job_id = :job_id AND epoch = :epoch"
ATTEMPT_BY_UPLOAD_TOKEN = (
    f"{_ATTEMPT} WHERE upload_token_hash = :token_hash AND upload_token_hash <> ''"
    " ORDER BY epoch DESC, id DESC LIMIT 1"
)
ATTEMPTS_OF_JOB = f"{_ATTEMPT} WHERE job_id = :job_id ORDER BY epoch, id"
ATTEMPTS_OF_WORKER = (
    f"{_ATTEMPT} WHERE worker_id = :worker_id AND worker_id <> '' ORDER BY epoch DESC, id DESC LIMIT :limit"
)
ATTEMPTS_ENDED_SINCE = (
    f"{_ATTEMPT} WHERE ended_at >= :at AND ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT :limit"
)
CHARGES_SINCE = (
    "SELECT attempts.id, jobs.owner, jobs.team, attempts.gpus, attempts.accepted_at, attempts.ended_at,"
    " attempts.hourly_micros, attempts.rates FROM attempts"
    " JOIN jobs ON jobs.id = attempts.job_id WHERE attempts.ended_at >= :at AND attempts.ended_at IS NOT NULL"
    " AND attempts.accepted_at IS NOT NULL ORDER BY attempts.ended_at"
)
_USED = (
    "SELECT attempts.id, jobs.owner, jobs.team, jobs.visibility, jobs.config_name, attempts.gpu_kind, attempts.gpus,"
    " attempts.accepted_at, attempts.ended_at, attempts.hourly_micros, attempts.rates FROM attempts"
    " JOIN jobs ON jobs.id = attempts.job_id WHERE attempts.accepted_at < :until"
)
# A part at a time, by the index of when they ended: each part goes on where the one before it stopped.
USED_AND_ENDED = (
    f"{_USED} AND attempts.ended_at IS NOT NULL AND attempts.ended_at >= :since"
    " AND (attempts.ended_at > :since OR attempts.id > :after) ORDER BY attempts.ended_at, attempts.id LIMIT :limit"
)
USED_STILL = (
    f"{_USED} AND attempts.state <> 'ended' AND attempts.id > :after ORDER BY attempts.id LIMIT :limit"
)
CHARGES_SPENT_SINCE = (
    "SELECT id, owner, team, gpus, accepted_at, ended_at, hourly_micros, rates FROM spent_attempts"
    " WHERE ended_at >= :at"
)
SPENT = (
    "SELECT id, owner, team, visibility, config_name, gpu_kind, gpus, accepted_at, ended_at, hourly_micros, rates"
    " FROM spent_attempts WHERE accepted_at < :until AND ended_at >= :since AND (ended_at > :since OR id > :after)"
    " ORDER BY ended_at, id LIMIT :limit"
)
# SQLite keeps a text in a column of numbers, would count with it as with 0, and takes it for larger than any number.
NO_TEXT = 1e300
TIME_SPENT = (
    "SELECT owner, team, visibility, gpus, sum(ended_at - CASE WHEN accepted_at < :since THEN :since"
    f" ELSE accepted_at END) FROM spent_attempts WHERE ended_at > :since AND ended_at < {NO_TEXT}"
    f" AND accepted_at < {NO_TEXT} GROUP BY owner, team, visibility, gpus"
)
# By the text of the GPUs, since their number is known only to whoever reads it: there are few texts, and many attempts.
_TIME_USED = (
    "SELECT jobs.owner, jobs.team, jobs.visibility, attempts.gpus, sum({ended} - CASE WHEN"
    " attempts.accepted_at < :since THEN :since ELSE attempts.accepted_at END) FROM attempts"
    f" JOIN jobs ON jobs.id = attempts.job_id WHERE attempts.accepted_at < {NO_TEXT} AND {{which}}"
    " GROUP BY jobs.owner, jobs.team, jobs.visibility, attempts.gpus"
)
TIME_USED_AND_ENDED = _TIME_USED.format(
    ended="attempts.ended_at",
    which=f"attempts.ended_at > :since AND attempts.ended_at IS NOT NULL AND attempts.ended_at < {NO_TEXT}",
)
TIME_USED_STILL = _TIME_USED.format(ended=":now", which="attempts.state <> 'ended'")
ANY_PRICED_ATTEMPT = "SELECT 1 FROM attempts WHERE hourly_micros IS NOT NULL OR rates <> '[]' LIMIT 1"
ANY_PRICED_SPENT = "SELECT 1 FROM spent_attempts WHERE hourly_micros IS NOT NULL OR rates <> '[]' LIMIT 1"
LIVE_ATTEMPTS_OF_WORKER = f"{_ATTEMPT} WHERE worker_id = :worker_id AND {_LIVE} ORDER BY epoch, id"
LIVE_ATTEMPTS = f"{_ATTEMPT} WHERE {_LIVE} ORDER BY epoch, id"

WORKER = f"{_WORKER} WHERE id = :id"
WORKER_BY_TOKEN_HASH = f"{_WORKER} WHERE token_hash = :token_hash"
WORKER_BY_NAME = f"{_WORKER} WHERE name_key = :name_key"
WORKERS = f"{_WORKER} ORDER BY created_at, id"
OFFLINE_WORKERS = f"{_WORKER} WHERE connection = 'offline' AND offline_since < :at ORDER BY offline_since, id"
DELETE_WORKER = "DELETE FROM workers WHERE id = :id"

CONFIG = f"{_CONFIG} WHERE name = :name AND version = :version AND deleted_at IS NULL"
NEWEST_CONFIG = f"{_CONFIG} WHERE name = :name AND deleted_at IS NULL ORDER BY version DESC LIMIT 1"
CONFIGS = (
    f"{_CONFIG} WHERE deleted_at IS NULL AND NOT EXISTS (SELECT 1 FROM configs newer"
    " WHERE newer.name = configs.name AND newer.version > configs.version AND newer.deleted_at IS NULL)"
)
CONFIG_VERSIONS = f"{_CONFIG} WHERE name = :name AND deleted_at IS NULL ORDER BY version"
# A deleted version may be written anew; a living one may not.
ADD_CONFIG = (
    f"{_insert('configs', _CONFIG_COLUMNS)}"
    " ON CONFLICT (name, version) DO UPDATE SET bundle = excluded.bundle, created_at = excluded.created_at,"
    " created_by = excluded.created_by, owner = excluded.owner, team = excluded.team,"
    " visibility = excluded.visibility, deleted_at = NULL WHERE configs.deleted_at IS NOT NULL"
)
DELETE_CONFIG = "UPDATE configs SET deleted_at = :at WHERE name = :name AND deleted_at IS NULL"

API_TOKEN = f"{_TOKEN} WHERE id = :id"
API_TOKEN_BY_HASH = f"{_TOKEN} WHERE token_hash = :token_hash"
API_TOKENS = f"{_TOKEN} ORDER BY created_at, id"
API_TOKENS_OF = f"{_TOKEN} WHERE owner = :owner ORDER BY created_at, id"
API_TOKENS_OF_NAME = f"{_TOKEN} WHERE owner = :owner AND name = :name ORDER BY created_at, id"
ADD_API_TOKEN = f"{_insert('api_tokens', ('id', *_TOKEN_COLUMNS))} ON CONFLICT DO NOTHING"
SAVE_API_TOKEN = f"UPDATE api_tokens SET {_set(_TOKEN_COLUMNS)} WHERE id = :id"
NOTE_TOKEN_USE = "UPDATE api_tokens SET last_used_at = :at WHERE token_hash = :token_hash"

USER = f"{_USER} WHERE id = :id"
USER_BY_NAME = f"{_USER} WHERE name_key = :name_key"
USER_BY_SUBJECT = f"{_USER} WHERE issuer = :issuer AND subject = :subject AND issuer <> ''"
USERS = f"{_USER} ORDER BY created_at, id"
USERS_START = f"{_USER} ORDER BY created_at, id LIMIT :limit"
USERS_AFTER = f"{_USER} WHERE (created_at, id) > (:created_at, :id) ORDER BY created_at, id LIMIT :limit"
ADD_USER = f"{_insert('users', (*_USER_COLUMNS, 'name_key'))} ON CONFLICT DO NOTHING"
SAVE_USER = f"UPDATE users SET {_set((*_USER_COLUMNS[1:], 'name_key'))} WHERE id = :id"
SESSION = f"{_SESSION} WHERE token_hash = :token_hash"
SESSIONS_OF_USER = f"{_SESSION} WHERE user_id = :user_id ORDER BY created_at, token_hash"
SESSIONS_OF_ISSUER = f"{_SESSION} WHERE issuer = :issuer ORDER BY created_at, token_hash"
SESSIONS_BY_SID = (
    f"{_SESSION} WHERE issuer = :issuer AND sid = :sid AND sid <> '' ORDER BY created_at, token_hash"
)
ADD_SESSION = f"{_insert('sessions', _SESSION_COLUMNS)} ON CONFLICT DO NOTHING"
RENEW_SESSION = "UPDATE sessions SET seen_at = :at WHERE token_hash = :token_hash"
DELETE_SESSION = "DELETE FROM sessions WHERE token_hash = :token_hash"
DELETE_SESSIONS_BEFORE = "DELETE FROM sessions WHERE created_at < :created_before OR seen_at < :seen_before"

ANSWER = "SELECT key, owner, request_hash, job_id, at FROM idempotency WHERE key = :key AND owner = :owner"
SETTING = "SELECT value FROM settings WHERE key = :key"
SETTINGS_WITH_PREFIX = "SELECT key, value FROM settings WHERE substr(key, 1, :length) = :prefix"
DELETE_SETTING = "DELETE FROM settings WHERE key = :key"
PUT_SETTING = (
    f"{_insert('settings', ('key', 'value'))} ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)
COUNTERS = "SELECT seq, epoch FROM counters"
SAVE_COUNTERS = "UPDATE counters SET seq = :seq, epoch = :epoch"

AUDIT_WHERE = f"{_ENTRY} WHERE {{conditions}} ORDER BY seq {{direction}} LIMIT :limit OFFSET :offset"
AUDIT_COUNT_WHERE = "SELECT count(*) FROM audit WHERE {conditions}"
AUDIT_RANGE = f"{_ENTRY} WHERE seq > :after_seq ORDER BY seq LIMIT :limit"
AUDIT_HASHES = "SELECT seq, hash FROM audit WHERE seq > :after_seq ORDER BY seq LIMIT :limit"
AUDIT_FULL = (
    "SELECT seq, event_type FROM audit WHERE seq <= :upto AND event_type <> '' ORDER BY seq LIMIT :limit"
)
EMPTY_AUDIT = (
    "UPDATE audit SET event_type = '', actor_id = '', actor_name = '', ip = '', target_type = '', target_id = '',"
    " details = '{}' WHERE seq >= :first AND seq <= :last"
)
AUDIT_HEAD = f"{_ENTRY} ORDER BY seq DESC LIMIT 1"
JOB_EVENTS = f"{_ENTRY} WHERE target_id = :job_id AND target_type = 'job' ORDER BY seq DESC LIMIT :limit"

MANIFEST = f"{_MANIFEST} WHERE id = :id"
MANIFESTS_OF_JOB = f"{_MANIFEST} WHERE job_id = :job_id ORDER BY created_at, id"
NEWEST_CHECKPOINT = (
    f"{_MANIFEST} WHERE job_id = :job_id AND kind = 'checkpoint'"
    " ORDER BY step DESC, created_at DESC, id DESC LIMIT 1"
)
ADD_MANIFEST = f"{_insert('manifests', MANIFEST_COLUMNS)} ON CONFLICT DO NOTHING"
PIN_MANIFEST = "UPDATE manifests SET pinned_by = :by WHERE id = :id"
DELETE_MANIFEST = "DELETE FROM manifests WHERE id = :id"
OBJECTS_OF_JOB = "SELECT sha256, size FROM job_objects WHERE job_id = :job_id"
OBJECT_OF_JOB = "SELECT size FROM job_objects WHERE job_id = :job_id AND sha256 = :sha256"
UNUSED_OBJECTS = (
    "SELECT job_id, sha256 FROM job_objects WHERE unused_since IS NOT NULL AND unused_since < :before"
    " ORDER BY unused_since, job_id, sha256 LIMIT :limit"
)
ENDINGS = (
    "SELECT finished_at, id FROM jobs WHERE finished_at < :before"
    " AND (finished_at > :at OR (finished_at = :at AND id > :job_id)) ORDER BY finished_at, id LIMIT :limit"
)
OBJECT_HAS_OWNER = (
    "SELECT 1 FROM job_objects WHERE sha256 = :sha256"
    " UNION ALL SELECT 1 FROM dataset_objects WHERE sha256 = :sha256 LIMIT 1"
)
HELD_BY_NO_OTHER = (
    "SELECT coalesce(sum(size), 0) FROM job_objects WHERE job_id = :id AND NOT EXISTS"
    " (SELECT 1 FROM job_objects AS others WHERE others.sha256 = job_objects.sha256 AND others.job_id <> :id)"
)
CONTENT_HELD = "SELECT DISTINCT sha256 FROM job_objects WHERE sha256 IN ({names})"
OWN_OBJECT = f"{_insert('job_objects', ('job_id', 'sha256', 'size', 'unused_since'))} ON CONFLICT DO NOTHING"
# What a manifest names stays in use; what waits for one waits anew.
OWN_AGAIN = (
    "UPDATE job_objects SET unused_since = :unused_since"
    " WHERE job_id = :job_id AND sha256 = :sha256 AND unused_since IS NOT NULL"
)
MARK_OBJECT = (
    "UPDATE job_objects SET unused_since = :unused_since WHERE job_id = :job_id AND sha256 = :sha256"
)
DISOWN_OBJECT = "DELETE FROM job_objects WHERE job_id = :job_id AND sha256 = :sha256"
NOTES_OF_JOB = f"SELECT {', '.join(NOTE_COLUMNS)} FROM job_notes WHERE job_id = :job_id ORDER BY seq"
ADD_NOTE = f"{_insert('job_notes', NOTE_COLUMNS)} ON CONFLICT DO NOTHING"

TALLIES = "SELECT key, n FROM tallies WHERE kind = :kind AND n <> 0"
ADD_TO_TALLY = f"{_insert('tallies', ('kind', 'key', 'n'))} ON CONFLICT (kind, key) DO UPDATE SET n = tallies.n + excluded.n"
TALLY = "SELECT n FROM tallies WHERE kind = :kind AND key = :key"
FORGET_TALLY_OF = "DELETE FROM tallies WHERE kind = :kind AND key = :key"
_OF_ITS_JOB = (
    "SELECT 'stored by job' AS kind, id AS key, CAST(:size AS BIGINT) AS n FROM jobs WHERE id = :job_id"
    " UNION ALL SELECT 'stored by owner', owner, CAST(:size AS BIGINT) FROM jobs WHERE id = :job_id"
    " UNION ALL SELECT 'stored by team', team, CAST(:size AS BIGINT) FROM jobs WHERE id = :job_id AND team <> ''"
)


def _add_to_tallies(changes: str) -> str:
    return (
        f"INSERT INTO tallies (kind, key, n) SELECT kind, key, n FROM ({changes}) AS changes"
        " WHERE true ON CONFLICT (kind, key) DO UPDATE SET n = tallies.n + excluded.n"
    )


ADD_STORED_BYTES = _add_to_tallies(_OF_ITS_JOB)
ADD_STORED_FILE = _add_to_tallies(
    f"{_OF_ITS_JOB} UNION ALL SELECT 'stored', '', CAST(:size AS BIGINT)"
    " WHERE NOT EXISTS (SELECT 1 FROM job_objects WHERE sha256 = :sha256 AND job_id <> :job_id)"
)
_STORED_BY_ROWS = (
    "SELECT 'stored by job' AS kind, job_id AS key, sum(size) AS n FROM job_objects GROUP BY job_id"
    " UNION ALL SELECT 'stored by owner', jobs.owner, sum(job_objects.size)"
    " FROM job_objects JOIN jobs ON jobs.id = job_objects.job_id GROUP BY jobs.owner"
    " UNION ALL SELECT 'stored by team', jobs.team, sum(job_objects.size)"
    " FROM job_objects JOIN jobs ON jobs.id = job_objects.job_id WHERE jobs.team <> '' GROUP BY jobs.team"
    " UNION ALL SELECT 'stored', '', sum(size)"
    " FROM (SELECT max(size) AS size FROM job_objects GROUP BY sha256) AS content"
)
_STORED_KINDS = "('stored by job', 'stored by owner', 'stored by team', 'stored')"
# One statement, so that both sides are of one moment.
STORED_IS_MISCOUNTED = (
    f"WITH counted AS (SELECT kind, key, n FROM ({_STORED_BY_ROWS}) AS sums WHERE n <> 0),"
    f" noted AS (SELECT kind, key, n FROM tallies WHERE kind IN {_STORED_KINDS} AND n <> 0)"
    " SELECT 1 WHERE EXISTS (SELECT kind, key, n FROM counted EXCEPT SELECT kind, key, n FROM noted)"
    " OR EXISTS (SELECT kind, key, n FROM noted EXCEPT SELECT kind, key, n FROM counted)"
)
FORGET_STORED = f"DELETE FROM tallies WHERE kind IN {_STORED_KINDS}"
COUNT_STORED = (
    f"INSERT INTO tallies (kind, key, n) SELECT kind, key, n FROM ({_STORED_BY_ROWS}) AS sums WHERE n <> 0"
)
FORGET_TALLY = "DELETE FROM tallies WHERE kind = :kind"
RECOUNT_JOBS = "SELECT state, count(*) FROM jobs GROUP BY state"
