"""Trains a small diffusion model anywhere in a minute, under the same contract as the real trainer."""
