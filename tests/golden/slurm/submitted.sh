#!/bin/bash
#SBATCH --job-name=train.py
#SBATCH --nodes=4
#SBATCH --open-mode=append
#SBATCH --signal=B:XCPU@45
# Made by allranks: the controller runs on the first node.
trap '' XCPU USR1 USR2  # before allranks listens, none of them may end the script
cd_failed() {
  echo "allranks: $(hostname) has no $1, which must lie on a file system that all nodes share" >&2
  exit 4
}
cd /home/me/work || cd_failed /home/me/work
export ALLRANKS_BATCH_SCRIPT=1
[ -x /opt/allranks/bin/python ] || cd_failed /opt/allranks/bin/python
[ -d /home/me/work/runs ] || cd_failed /home/me/work/runs
export ALLRANKS_RUN_DIR=/home/me/work/runs/run-20261121-120000"-job$SLURM_JOB_ID"
waited=0  # the directory gets its name when sbatch has said the job's number
until [ -d "$ALLRANKS_RUN_DIR" ] || [ $waited -ge 60 ]
do
  sleep 1
  waited=$((waited + 1))
done
[ -d "$ALLRANKS_RUN_DIR" ] || cd_failed "$ALLRANKS_RUN_DIR"
exec /opt/allranks/bin/python \
  -m \
  allranks \
  run \
  --slurm \
  --config=/dev/null \
  --runs-dir=/home/me/work/runs \
  -- \
  train.py
