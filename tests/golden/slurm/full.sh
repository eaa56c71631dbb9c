#!/bin/bash
#SBATCH --job-name=demo
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=8
#SBATCH --partition=gpu,long
#SBATCH --open-mode=append
#SBATCH --signal=B:XCPU@135
#SBATCH --gres=gpu:8 --time=1-00:00:00 '--comment=two words'
# Made by allranks: the controller runs on the first node.
trap '' XCPU USR1 USR2  # before allranks listens, none of them may end the script
cd_failed() {
  echo "allranks: $(hostname) has no $1, which must lie on a file system that all nodes share" >&2
  exit 4
}
cd '/shared/my project' || cd_failed '/shared/my project'
export ALLRANKS_BATCH_SCRIPT=1
[ -x /opt/allranks/bin/python ] || cd_failed /opt/allranks/bin/python
export COLOSSALAI_DIST_TIMEOUT=1800
: "${MY_TOKEN:?set MY_TOKEN in the shell that calls sbatch}"
exec /opt/allranks/bin/python \
  -m \
  allranks \
  run \
  --slurm \
  --config=/dev/null \
  --runs-dir=/shared/runs \
  --nproc=8 \
  --python=/opt/env/bin/python \
  '--prelude=module load cuda
source env.sh' \
  --network=10.0.0.0/16 \
  --stop-grace=120 \
  --name=demo \
  --retries=3 \
  --env=OMP_NUM_THREADS=8 \
  --env=MY_TOKEN \
  --env=WANDB_API_KEY \
  -- \
  train.py \
  --epochs \
  3 \
  --note \
  'it'"'"'s'
