"""What a task of the kind `train` expects of a method: see `tasks.training.recipe`."""

from tasks.training.recipe import Closure as Closure
from tasks.training.recipe import Method as Method
from tasks.training.recipe import Optimizer as Optimizer
from tasks.training.recipe import Recipe as Recipe
