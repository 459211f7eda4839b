-- Everybody who has sent it whole: until a dataset that all may see names it, it is for nobody else to name.
-- dataset_objects.owner is written no more; servers of the release before still read it.
CREATE TABLE dataset_claims (
    sha256 TEXT NOT NULL,
    owner TEXT NOT NULL,
    PRIMARY KEY (sha256, owner)
);
INSERT INTO dataset_claims (sha256, owner) SELECT sha256, owner FROM dataset_objects WHERE owner <> '';
