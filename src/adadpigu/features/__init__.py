"""What comes before the trained net: fixed features and normalisers, record by record. Sensitive in, sensitive out.

Nothing here learns from records, so nothing here is charged; `ReleasedNorm` is filled by a charged stage of training.
"""
