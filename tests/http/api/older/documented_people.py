"""What the former documents say of people, tokens, sign-in and the audit log."""

from tests.http.api.older.documented_row import OTHERWISE, asked

PEOPLE = [
    asked("users", "GET /api/users"),
    asked(
        "users: create",
        "POST /api/users",
        {
            "email": "researcher@company.com",
            "username": "jsmith",
            "password": "secure_password_123",
            "level_names": ["researcher"],
        },
        status=201,
        names=("id", "username", "is_active", "levels", "not_kept"),
    ),
    asked("one user", "GET /api/users/{user}", names=("id", "username", "is_active", "is_admin")),
    asked("oneself", "GET /api/users/me", names=("id", "name")),
    asked("deactivate", "POST /api/users/{user}/deactivate", names=("id", "is_active")),
    asked("activate", "POST /api/users/{user}/activate", names=("id", "is_active")),
    asked("change", "PATCH /api/users/{user}", {"is_active": True}, names=("id", "is_active")),
    asked(
        "change of e-mail", "PATCH /api/users/{user}", {"email": "a@b.example"}, status=OTHERWISE, says="role"
    ),
    asked("level", "POST /api/users/{user}/levels", {"level_name": "viewer"}, names=("id", "levels")),
    asked(
        "level lead",
        "POST /api/users/{user}/levels",
        {"level_name": "lead"},
        status=OTHERWISE,
        says="/members/",
    ),
    asked("roles", "GET /api/users/meta/levels", names=("roles",)),
    asked("permissions", "GET /api/users/meta/permissions", names=("permissions",)),
    asked(
        "permission override",
        "POST /api/users/{user}/permissions",
        {"permission_name": "admin.approve", "granted": True},
        status=OTHERWISE,
        says="/api/admin/roles/",
    ),
    asked("own levels", "POST /api/users/levels", {"name": "x"}, status=OTHERWISE, says="/api/admin/roles/"),
    asked("resource rules", "POST /api/users/resource-rules", {}, status=OTHERWISE, says="/api/teams/"),
    asked("resource rules", "GET /api/users/resource-rules", status=OTHERWISE, says="/api/teams/"),
    asked("credentials", "GET /api/users/me/credentials", status=OTHERWISE, says="/api/secrets"),
    asked("credentials", "POST /api/users/{user}/credentials", {}, status=OTHERWISE, says="/api/secrets"),
    asked("organisations", "GET /api/orgs", names=("teams",)),
    asked(
        "organisations: create",
        "POST /api/orgs",
        {"name": "ML", "slug": "ml"},
        status=OTHERWISE,
        says="/api/teams",
    ),
    asked("teams", "GET /api/orgs/1/teams", names=("teams",)),
    asked("teams of another", "GET /api/orgs/2/teams", status=404, says="one organisation"),
    asked(
        "teams: create",
        "POST /api/orgs/1/teams",
        {"name": "NLP Team", "slug": "nlp"},
        status=201,
        names=("id", "name"),
    ),
    asked("one team", "GET /api/orgs/1/teams/{team}", names=("id", "members")),
    asked(
        "team member",
        "POST /api/orgs/1/teams/{team}/members",
        {"user_id": "{user}", "role": "member"},
        names=("id", "members"),
    ),
    asked(
        "role in a team",
        "PATCH /api/orgs/1/teams/{team}/members/{user}",
        {"role": "lead"},
        names=("id", "members"),
    ),
    asked("members", "GET /api/orgs/1/teams/{team}/members", names=("members",)),
    asked("leave a team", "DELETE /api/orgs/1/teams/{team}/members/{user}", names=("id", "members")),
    asked("delete of a user", "DELETE /api/users/{user}", names=("id", "is_active"), leaves=True),
]

TOKENS = [
    asked("API keys", "GET /api/auth/api-keys", names=("tokens",)),
    asked(
        "API keys: create",
        "POST /api/auth/api-keys",
        {"name": "ci", "expires_days": 30, "scoped_permissions": ["jobs.read"]},
        status=201,
        names=("id", "key", "expires_at"),
    ),
    asked("API keys: revoke", "DELETE /api/auth/api-keys/{token}", names=("id",), leaves=True),
    asked("oneself", "GET /api/auth/me", names=("id", "name")),
    asked("first admin", "GET /api/auth/setup/status", status=OTHERWISE, says="link"),
    asked("first admin", "POST /api/auth/setup/first-admin", {}, status=OTHERWISE, says="link"),
    asked("self-registration", "POST /api/auth/register", {}, status=OTHERWISE, says="invite"),
    asked("change of password", "PUT /api/users/me/password", {}, status=OTHERWISE, says="/api/me"),
]

SIGN_IN = [
    asked("several providers", "GET /api/cloud/external-auth/available", names=("providers",)),
    asked("providers", "GET /api/cloud/external-auth/providers", status=OTHERWISE, says="--sign-in-file"),
    asked(
        "providers", "POST /api/cloud/external-auth/providers", {}, status=OTHERWISE, says="--sign-in-file"
    ),
    asked(
        "OIDC login", "GET /api/cloud/external-auth/oidc/okta/start", status=OTHERWISE, says="/login/with/"
    ),
    asked("LDAP login", "POST /api/cloud/external-auth/ldap/login", {}, status=OTHERWISE, says="/api/login"),
]

AUDIT = [
    asked("events", "GET /api/audit?limit=5&offset=0", names=("entries", "total")),
    asked("filters", "GET /api/audit?event_type=auth.login.failed", names=("entries",)),
    asked("stats", "GET /api/audit/stats", names=("total", "by_type")),
    asked("types", "GET /api/audit/types", names=("types",)),
    asked("verification", "GET /api/audit/verify", names=("valid",)),
    asked("per user", "GET /api/audit/user/{user}", names=("entries",)),
    asked("security", "GET /api/audit/security", names=("entries", "total")),
    asked("filters", "GET /api/audit?event_type=rate_limited", status=422, says="/api/audit/types"),
    asked("SIEM", "POST /api/audit/export-config", {}, status=OTHERWISE, says="/api/notifications"),
]
