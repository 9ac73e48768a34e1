"""The release of an image: its certificate signed and verified, its bill of materials, how it differs from another.

keys                 private keys, public keys and trust files
statement            what is signed: a certificate's in-toto statement, and its DSSE envelope (certificate.dsse.json)
report_signature     who made a report: signed by the job that proves, examined by certify and merge
bom                  bom.cdx.json: packages, kernel modules and files
image_description    what is known of an image, from the files that are at hand
comparison           how two images differ, as text, Markdown, HTML or JSON
rebuild              whether two builds of one plan have the same content
verification         verifies a certificate: signature, files, level, age, waivers; what was held, refused, skipped
verification_place   compares a certificate with the AMI in its region, or follows a copy back to the certified one
verification_host    compares a running machine with the certified inventory and bill of materials
scan                 a scanner of the user's on the bill of materials
"""
