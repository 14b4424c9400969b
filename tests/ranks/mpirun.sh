#!/usr/bin/env bash
# Runs a program as 4 ranks under mpirun, on what looks like two hosts (see TRIREME_HOST):
#   mpirun.sh MPIRUN PROGRAM [ARGUMENT...]
# Exits with 77 (skipped) where there is no MPI.
set -euo pipefail
readonly mpirun=$1
shift
if [[ -z $mpirun ]]; then
  echo "skipped: trireme is built without MPI (Debian: apt-get install libopenmpi-dev openmpi-bin)"
  exit 77
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1  # containers
export OMPI_MCA_plm_rsh_agent=  # no ssh is needed on one host
if [[ $("$mpirun" --version) =~ Open\ MPI|OpenRTE|PRRTE ]]; then
  exec "$mpirun" --oversubscribe -n 2 -x TRIREME_HOST=left "$@" : -n 2 -x TRIREME_HOST=right "$@"
fi
exec "$mpirun" -n 2 -env TRIREME_HOST left "$@" : -n 2 -env TRIREME_HOST right "$@"
