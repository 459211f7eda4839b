"""A small diffusion model that trains anywhere in a minute, under the same contract as the real trainer."""
