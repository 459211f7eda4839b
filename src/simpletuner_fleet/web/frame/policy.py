"""Defines what a page may load and do: only what comes from our own origin, and no inline scripts or styles.

Scripts turn no text into markup that `trusted.js` has not checked.
"""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "worker-src 'self'",
        "manifest-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types default fleet-inert",
    )
)
