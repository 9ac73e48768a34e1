"""The release of an image: its certificate signed and verified, its bill of materials, how it differs from another.

keys                 private keys, public keys and trust files
statement            the in-toto statement of a certificate: what is signed
envelope             the DSSE envelope around a statement (certificate.dsse.json), and JSON without duplicate keys
bom                  bom.cdx.json: packages, kernel modules and files
scan                 a scanner of the user's on the bill of materials
image_description    what is known of an image, from the files that are at hand
comparison           how two images differ
rebuild              whether two builds of one plan have the same content
rendering            a comparison as text, Markdown, HTML or JSON
findings             what a verification found: held, refused or not looked at
verification         verifies a certificate: signature, files, level, age, waivers
verification_place   compares a certificate with the AMI in its region
verification_copy    follows a copy of an AMI back to the certified one
verification_host    compares a running machine with the certified inventory
verification_materials    compares what is installed on it with the signed bill of materials
"""
