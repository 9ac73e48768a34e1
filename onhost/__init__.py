"""Programs that run on images and machines under test: old Python, standard library alone, none of our packages.

event_parser/        Xids, SXids and lost GPUs of the kernel log (role event_parser; Python 3.7 or newer)
neuron_monitor/      reports of neuron-monitor as CloudWatch metrics (role neuron_monitor; Python 3.9 or newer)
drain_hook/          notices of an instance's end (role drain_hook; Python 3.9 or newer)

Sent by validator/remote.py, and what the image's playbooks run:
batch_shell          the loop of the batching shell (transport/shell.py)
kill_marked          kills everything that a batching shell has started
run_while_open       runs a command until the end of its standard input (transport/ssh.py)
host_constants       commands whose answers do not change during a run (transport/shell.py)
bug_report           NVIDIA's bug report, with a time and a size limit (evidence.py)
replica_packages     packages that replace the vendors' (evidence.py)
replica_builds       replica kernel modules and libraries without a package (evidence.py)
unpackaged           files that no package owns (probes/footprints.py)
image_inodes         the inodes of an image's directories, and their last change (evidence.py)
changed_since        what has changed on a machine since its image (probes/since_image.py)
verify_partly        dpkg --verify without some directories (probes/packages.py)
inventory            lists every file, package and account (file_account/, playbooks/image.yml; Python 3.6 or newer)
initial_ramdisk      lists the files of initial ramdisks (file_account/; Python 3.6 or newer)
system_upgrade       simulates an upgrade of the whole system (probes/system_upgrade.py; Python 3.6 or newer)
materials            packages with their sources, and kernel modules (evidence.py, image.yml; Python 3.6 or newer)
diagnose             gpu-ami-diagnose: GPUs, events, monitor, EFA (evidence.py, role event_parser; Python 3.7 or newer)
observation          components by their sources, the agent, what captures Xids (gpu_ami/observe; Python 3.6 or newer)
telemetry_attachment puts telemetry on a machine, and takes it back (gpu_ami/fleet; Python 3.7 or newer)
interruption_drill   plays notices to the drain hook (checks/drain_hook.py; Python 3.7 or newer)
readings             one value of a tool: known, absent or unknown; a link to the event parser's module (diagnose)
support_bundle       what AWS Support asks for; table of files (evidence.py, role event_parser)
container_probe      starts containers with GPUs (probes/containers.py; Python 3.6 or newer)
compute_probe        computes on every GPU and compares every result (probes/compute.py; Python 3.6 or newer)
mpi_allreduce        one rank of an Open MPI job (checks/several_nodes.py; Python 3.6 or newer)
tcp_exchange         connections between nodes (checks/several_nodes.py; Python 3.6 or newer)
provoke_xid          causes a fault of one process on one GPU (Python 3.6 or newer)
"""
