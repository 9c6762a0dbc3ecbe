"""The intermediate representation: types, operations, builder, verifier, text form."""
