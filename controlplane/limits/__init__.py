"""What operators allow: switches that stop admissions and compute, and quotas of organisations and projects."""
