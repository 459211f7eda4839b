"""Contains the small diffusion model itself: its images, its network, and the backends that compute with it."""
