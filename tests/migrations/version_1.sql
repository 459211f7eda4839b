-- Rows as version 1 wrote them. Never edit: later migrations must carry exactly these. `:bundle` stands for the bytes {}.
INSERT INTO classes (class_id, requires) VALUES
    ('c_1', '{"target":"auto","gpus":2,"min_vram_gb":0.0,"accelerator":"","trainer":"simpletuner","labels":[],"owner":""}');
INSERT INTO jobs (id, seq, config_name, config_version, requires, class_id, owner, created_at, depends_on, retry_of, state,
    hold, rank, priority, max_retries, not_before, retry_on_failure, time_limit_s, on_partition, name, epoch, attempts, losses,
    failures, lost_workers, attempt_id, worker_id, gpus, progress, error, reason, started_at, finished_at, version)
VALUES
    ('j_done', 1, 'sdxl', 1,
    '{"target":"auto","gpus":2,"min_vram_gb":0.0,"accelerator":"","trainer":"simpletuner","labels":[],"owner":""}',
    'c_1', 't_1', 100.5, '[]', NULL, 'completed', '', 0.0, 5, 3, NULL, 0, NULL, 'pause', NULL, 7, 1, 0, 0, '[]', 'a_1', 'w_1',
    '["GPU-1"]', '{"step":10}', NULL, NULL, 100.75, 101.25, 3),
    ('j_queued', 2, 'sdxl', 2,
    '{"target":"auto","gpus":2,"min_vram_gb":0.0,"accelerator":"","trainer":"simpletuner","labels":[],"owner":""}',
    'c_1', 't_1', 100.5, '["j_done"]', NULL, 'queued', '', -5.5, 5, 3, NULL, 1, 60.0, 'pause', 'second', 0, 0, 0, 0, '[]', NULL,
    NULL, '[]', NULL, NULL, NULL, NULL, NULL, 0);
INSERT INTO job_bundles (job_id, bundle) VALUES ('j_done', :bundle), ('j_queued', :bundle);
INSERT INTO job_dependencies (job_id, needs) VALUES ('j_queued', 'j_done');
INSERT INTO attempts (id, job_id, number, epoch, worker_id, worker_name, state, offered_at, gpus, gpu_indices,
    upload_token_hash, accepted_at, started_at, ended_at, outcome, exit_code, exit_signal, error, last_lines, incarnation)
VALUES
    ('a_1', 'j_done', 1, 7, 'w_1', 'gpu-1', 'ended', 100.5, '["GPU-1"]', '[0]', 'hash', 100.6, 100.75, 101.25, 'completed', 0,
    NULL, NULL, 'done', 'i_1');
INSERT INTO workers (id, name, name_key, token_hash, token_created_at, created_at, chosen_type, reported_type, admin,
    connection, labels, reported_labels, gpus, trainers, max_jobs, legacy, local, agent_version, home, incarnation,
    message_seq, registered_at, last_heartbeat, offline_since, drain_note, version)
VALUES
    ('w_1', 'gpu-1', 'gpu-1', 'hash', 90.0, 90.0, 'persistent', NULL, 'active', 'connected', '{"team":"nlp"}', '{}',
    '[{"index":0,"uuid":"GPU-1","name":"A100","vram_gb":80.0,"accelerator_type":"cuda"}]', '["simpletuner"]', 1, 0, 0, '1.0',
    'h_1', 'i_1', 4, 91.0, 101.0, NULL, '', 2);
INSERT INTO configs (name, version, bundle, created_at, created_by, deleted_at) VALUES
    ('sdxl', 1, :bundle, 80.0, 't_1', NULL),
    ('sdxl', 2, :bundle, 81.0, 't_1', NULL);
INSERT INTO api_tokens (id, name, token_hash, permissions, created_at, expires_at, revoked_at) VALUES
    ('t_1', 'Anna', 'hash', '["jobs.read"]', 70.0, NULL, NULL);
INSERT INTO idempotency (key, owner, request_hash, job_id, at) VALUES ('k', 't_1', 'h', 'j_done', 100.5);
INSERT INTO settings (key, value) VALUES ('limit', '4');
UPDATE counters SET seq = 2, epoch = 7;
INSERT INTO audit (seq, at, event_type, actor_id, actor_name, ip, target_type, target_id, details, hash) VALUES
    (1, 100.5, 'job.submitted', 'orchestrator', 'orchestrator', '', 'job', 'j_done', '{"priority":5}',
    'ffbd54646c2b5ff9f48deaff42598997d22e2860d14bd609b887344d0341d943'),
    (2, 101.25, 'job.completed', 'orchestrator', 'orchestrator', '', 'job', 'j_done', '{"note":"f\u00fcr immer"}',
    'a44348c12c5fe1db0a180f9ea5b1e42f4c59ef480deb24651bfb4358ebd8bbc3');
