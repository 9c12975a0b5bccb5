"""Views: how an episode is cut into rows and items. One file a view; `base` says what a view is, `cuts` what it makes.

>>> from rlds2reverb.views import NStep, view_of
>>> view_of("n_step:n=5") == NStep(n=5)
True
"""

from rlds2reverb.cuts import Cut, Field, Window
from rlds2reverb.views.across import AcrossEpisodes
from rlds2reverb.views.base import EpisodeStream, StreamView, View
from rlds2reverb.views.episode import WholeEpisode
from rlds2reverb.views.extras import Extras
from rlds2reverb.views.fragments import Fragments
from rlds2reverb.views.frame_stack import FrameStack
from rlds2reverb.views.goal import Goal
from rlds2reverb.views.jigsaw import Jigsaw
from rlds2reverb.views.n_step import NStep
from rlds2reverb.views.prioritized import Prioritized, by_return, return_of
from rlds2reverb.views.registry import VIEWS, ViewLike, view_from, view_of
from rlds2reverb.views.requirements import Requirements, ViewRequirement
from rlds2reverb.views.sequence import SequenceView, two_step
from rlds2reverb.views.slices import Slices
from rlds2reverb.views.target_pair import TargetPair
from rlds2reverb.views.trajectory import table_signature
from rlds2reverb.views.transition import Transition

__all__ = [
    "VIEWS",
    "AcrossEpisodes",
    "Cut",
    "EpisodeStream",
    "Extras",
    "Field",
    "Fragments",
    "FrameStack",
    "Goal",
    "Jigsaw",
    "NStep",
    "Prioritized",
    "Requirements",
    "SequenceView",
    "Slices",
    "StreamView",
    "TargetPair",
    "Transition",
    "View",
    "ViewLike",
    "ViewRequirement",
    "WholeEpisode",
    "Window",
    "by_return",
    "return_of",
    "table_signature",
    "two_step",
    "view_from",
    "view_of",
]
