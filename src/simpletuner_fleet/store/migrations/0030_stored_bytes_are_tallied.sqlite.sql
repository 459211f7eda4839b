-- Each file that arrives asks how much its job, its owner, their team and all together have stored.
INSERT INTO tallies (kind, key, n)
SELECT 'stored by job', job_id, sum(size) FROM job_objects GROUP BY job_id;
INSERT INTO tallies (kind, key, n)
SELECT 'stored by owner', jobs.owner, sum(job_objects.size)
FROM job_objects JOIN jobs ON jobs.id = job_objects.job_id GROUP BY jobs.owner;
INSERT INTO tallies (kind, key, n)
SELECT 'stored by team', jobs.team, sum(job_objects.size)
FROM job_objects JOIN jobs ON jobs.id = job_objects.job_id WHERE jobs.team <> '' GROUP BY jobs.team;
INSERT INTO tallies (kind, key, n)
SELECT 'stored', '', coalesce(sum(size), 0)
FROM (SELECT DISTINCT sha256, size FROM job_objects) AS content;
