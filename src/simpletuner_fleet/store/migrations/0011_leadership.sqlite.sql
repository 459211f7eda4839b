-- One process has this file to itself: nobody else could lead.
SELECT 1;
