from torchvision.transforms.v2 import RandomGrayscale


class Gray(RandomGrayscale):
    pass
