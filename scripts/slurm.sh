#!/usr/bin/env bash
#SBATCH --job-name=titan
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
# Trains on the nodes of a Slurm job:
#   sbatch scripts/slurm.sh configs/llama3/8b.toml [--section.key=value ...]     (from the folder of the checkout)
#
# One launcher a node, which starts a process for each device and meets the others at the first node. 300 s before the time
# is up Slurm sends SIGUSR1 to the launchers: the run finishes its step, saves and stops with exit code 75, and the job goes
# back into the queue. The dump folder must be on storage that all nodes share. Set up .venv (./train.sh --help) before.
set -uo pipefail
cd "${SLURM_SUBMIT_DIR:?start this with sbatch}" || exit 1

export NNODES="$SLURM_JOB_NUM_NODES"
# A port of this job, since two jobs can share a node.
RDZV_ENDPOINT="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):$((20000 + SLURM_JOB_ID % 20000))"
export RDZV_ENDPOINT RDZV_ID="$SLURM_JOB_ID"

# The exit code is the highest of the nodes: 2 (refused) and 3 (not finite) would come again, only 75 is put back. After a
# failure the other nodes end by themselves within seconds; --wait is for the case that they cannot.
srun --kill-on-bad-exit=0 --wait=120 ./train.sh "$@"
code=$?
if [[ $code -eq 75 ]]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
