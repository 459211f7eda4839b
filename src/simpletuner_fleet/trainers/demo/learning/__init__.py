"""The small diffusion model itself: its images, its network, and what computes with it."""
