"""Templates of the configuration files of the cluster's daemons."""

SSHD = """\
Port 22
HostKey {state}/keys/host
AuthorizedKeysFile {state}/keys/user.pub
AllowUsers {user}
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
AcceptEnv LANG LC_*
MaxStartups 1000
MaxSessions 1000
PidFile /run/sshd.pid
Subsystem sftp internal-sftp
"""

# One key exchange and one cipher, fast ones: with the default lists, pdsh over 16 hosts takes 1.1 s instead of 0.4 s.
SSH = """\
Host *
    IdentityFile {state}/keys/user
    IdentitiesOnly yes
    GlobalKnownHostsFile {state}/etc/known_hosts
    UserKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    KexAlgorithms curve25519-sha256
    Ciphers aes128-gcm@openssh.com
"""

NSSWITCH = """\
passwd: files
group: files
shadow: files
hosts: files
"""

# A job that is queued again may start once its credential has expired: after two minutes by default.
SLURM = """\
ClusterName=testbed
SlurmctldHost=login
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=cred_expire=30
StateSaveLocation=/run/slurmctld
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin={task}
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=10
KillWait=5
InactiveLimit=0
GresTypes=gpu
NodeName={nodes} CPUs={cpus} RealMemory=1000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""

SLURM_GRES = """\
AutoDetect=off
NodeName={nodes} Name=gpu File=/run/gpu/gpu[0-{last}]
"""

# Read by siteinit.sh and nodeinit.sh.
SITE_ENV = """\
PREFIX=16
PRIVATE='{private}'
SLURM={slurm}
SLURM_GPUS={gpus}
RUNAS={runas}
"""
